"""Every test leaves the machine as it found it: no process, no descriptor, no temporary file."""

import gc
import os
import tempfile
import time

import psutil
import pytest

SETTLE_S = 3.0


def footprint() -> dict[str, object]:
    """What this process holds now: children, open descriptors, our temporary files."""
    gc.collect()
    me = psutil.Process()
    temporary = tempfile.gettempdir()
    return {
        "children": sorted(child.pid for child in me.children(recursive=True)),
        "descriptors": me.num_fds(),
        "files": sorted(os.listdir(temporary)),
    }


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory(tmp_path_factory):
    """Give this test session a temporary directory of its own, so that others do not disturb it."""
    path = tmp_path_factory.mktemp("tmpdir")
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), str(path)
    tempfile.tempdir = None
    yield
    os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
    tempfile.tempdir = None


@pytest.fixture(autouse=True)
def nothing_left_behind(own_temporary_directory):
    """Fail the test that leaves something behind."""
    before = footprint()
    yield
    deadline = time.monotonic() + SETTLE_S
    while (after := footprint()) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert after == before


@pytest.fixture(params=["exec", "warm"])
def start(request: pytest.FixtureRequest) -> str:
    """How a worker comes to be: as a fresh interpreter, or as a fork of a zygote. What must not
    work must not work either way."""
    return request.param
