"""A workspace in each setting."""

from __future__ import annotations

import pytest
from support_trees import SETTINGS, Site

QUICK = ("plain", "mount below")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SETTINGS
    ]
)
def site(request, tmp_path):
    """A filled workspace, in each setting."""
    with Site(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def plain(tmp_path):
    """A filled workspace on an ordinary file system."""
    with Site(tmp_path, "plain") as made:
        yield made
