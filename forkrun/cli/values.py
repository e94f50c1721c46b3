"""Values of flags, read from text. Each reader raises ArgumentTypeError with what it takes."""

from __future__ import annotations

from argparse import ArgumentTypeError

_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATIONS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def size(text: str) -> int:
    """Read a number of bytes: 4096, 512M, 4G, 4GiB (powers of 1024)."""
    folded = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = folded[-1:] if folded[-1:] in _SIZES else ""
    return int(_number(folded.removesuffix(unit), "a size such as 512M or 4G", text) * _SIZES[unit])


def duration(text: str) -> float:
    """Read a number of seconds: 90, 90s, 1.5m, 2h."""
    folded = text.strip().lower()
    unit = folded[-1:] if folded[-1:] in _DURATIONS else ""
    wanted = "a duration such as 90, 90s or 5m"
    return _number(folded.removesuffix(unit), wanted, text) * _DURATIONS[unit]


def count(text: str) -> int:
    """Read a whole number that is more than zero."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"not a whole number of at least 1: {text}")
    return int(text)


def natural(text: str) -> int:
    """Read a whole number, zero included."""
    return 0 if text.strip() == "0" else count(text)


def money(text: str) -> float:
    """Read an amount of US dollars."""
    return _number(text.strip().removeprefix("$"), "an amount of dollars such as 0.50", text)


def names(text: str) -> tuple[str, ...]:
    """Read a list of names, parted by commas; an empty text is an empty list."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _number(text: str, wanted: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 1e18:
        raise ArgumentTypeError(f"not {wanted}: {whole}")
    return number
