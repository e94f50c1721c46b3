"""The fixtures of whoever tries a sandbox: who it is, where, and what lies beside that place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_sandbox import WHO, Person


@pytest.fixture(params=WHO)
def who(request: pytest.FixtureRequest, start: str) -> Person:
    """Root, and an ordinary user: what must not work must not work for either."""
    return Person(request.param, start=start)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory outside every sandbox's own places, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="forkrun-test-", dir="/var/tmp")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def workspace(place: Path, who: Person) -> Path:
    """The directory that the sandbox works in, owned by whoever runs it."""
    path = place / "workspace"
    path.mkdir()
    return who.owns(path)


@pytest.fixture
def outside(place: Path, who: Person) -> Path:
    """A directory beside the workspace, with a secret file, owned by whoever runs the sandbox."""
    path = place / "outside"
    path.mkdir()
    (path / "secret").write_text("canary-7f3a\n")
    return who.owns(path)
