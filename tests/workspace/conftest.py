"""A bench for each form of view: an overlay, where this machine has them, and a copy."""

from __future__ import annotations

import os

import pytest
from support_views import Bench, require_overlay


@pytest.fixture(params=["overlay", "copy"])
def bench(request, tmp_path):
    """A workspace and a state directory; nothing may be left open, mounted or lying about."""
    if request.param == "overlay":
        (tmp_path / "probe").mkdir()
        require_overlay(tmp_path / "probe")
    before = len(os.listdir("/proc/self/fd"))
    made = Bench(tmp_path, request.param)
    yield made
    assert made.residue() == []
    assert len(os.listdir("/proc/self/fd")) == before
