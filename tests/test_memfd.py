"""Sealed memory files: shared, unchangeable, on no disk, gone when they are closed."""

import errno
import mmap
import os
import subprocess
import sys

import pytest

from forkrun.memfd import mapped, sealed


def test_a_child_reads_what_was_written():
    """The descriptor crosses by inheritance; nothing of the content stands in argv."""
    fd = sealed(b"a" * 1_000_000, b"the end")
    reader = (
        "import mmap, sys; print(mmap.mmap(int(sys.argv[1]), 0, prot=mmap.PROT_READ)[-7:].decode())"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", reader, str(fd)],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    finally:
        os.close(fd)
    assert done.stdout == "the end\n"


def test_nobody_can_change_it():
    """Writing, growing, shrinking and a writable mapping fail with EPERM; an unsealed file allows them."""
    fd, unsealed = sealed(b"fixed"), os.memfd_create("control")
    try:
        for act in (
            lambda f: os.pwrite(f, b"X", 0),
            lambda f: os.ftruncate(f, 2),
            lambda f: os.ftruncate(f, 100),
            lambda f: mmap.mmap(f, 0).close(),
        ):
            act(unsealed)
            with pytest.raises(OSError) as refused:
                act(fd)
            assert refused.value.errno == errno.EPERM
        with mapped(fd) as view:
            assert bytes(view) == b"fixed"
            assert view.readonly
    finally:
        os.close(fd)
        os.close(unsealed)


def test_a_file_that_is_not_sealed_is_not_read():
    """Who maps it may rely on its never changing."""
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(ValueError, match="not sealed"), mapped(fd):
            pass
    finally:
        os.close(fd)


def test_nothing_is_a_file_too():
    """An empty one maps to an empty view."""
    fd = sealed()
    try:
        with mapped(fd) as view:
            assert bytes(view) == b""
    finally:
        os.close(fd)
