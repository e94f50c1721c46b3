"""The one error of this package: a layer of the confinement that could not be put in force."""

from __future__ import annotations


class SandboxFault(Exception):
    """A layer that the kernel refused, or that did not hold when it was tried.

    `layer` is its name as in a Report ("user", "mount", "landlock", …); `errno` the kernel's
    number, or None.
    """

    def __init__(self, layer: str, reason: str, *, errno: int | None = None) -> None:
        super().__init__(f"{layer}: {reason}")
        self.layer = layer
        self.reason = reason
        self.errno = errno
