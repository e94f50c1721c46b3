"""Match text against a pattern in which `*` stands for anything, blanks and newlines included.

Linear in the text whatever the pattern: the states of the pattern are the bits of one integer.
The text may itself have unknown parts (`WILD`), and then the question is whether it *could* match.
"""

from __future__ import annotations

import msgspec

# Half of a surrogate pair each: no decoded text holds them, so they cannot be forged.
WILD = "\ud800"  # an unknown part: the value of a variable, say
HELD = "\ud801"  # a blank or a newline inside of a quoted word, or an empty word


class Glob(msgspec.Struct, frozen=True):
    """A pattern, compiled: the bits that a character advances, the bits of stars, the last bit."""

    steps: dict[str, int]
    stars: int
    end: int

    def matches(self, text: str) -> bool:
        """Say whether the whole text matches, whatever its unknown parts turn out to be."""
        state = self._rest(1)
        for char in text:
            state = self._after(state, char)
            if not state:
                return False
        return bool(state & self.end)

    def may_match(self, text: str) -> bool:
        """Say whether the whole text matches for some value of its unknown parts.

        A star at the beginning of the pattern does not take an unknown part for what follows it:
        `*rm /*` is about a text with `rm /` in it, and not about every text with a variable.
        """
        state = self._rest(1)
        for char in text:
            state = self._after_anything(state) if char == WILD else self._after(state, char)
            if not state:
                return False
        return bool(state & self.end)

    def _after(self, state: int, char: str) -> int:
        return self._rest((state & self.steps.get(char, 0)) << 1 | (state & self.stars))

    def _after_anything(self, state: int) -> int:
        begun = state & ~(3 if self.stars & 1 else 1)
        if not begun:
            return state
        return (self.end << 1) - (begun & -begun) | self._rest(state & self.stars)

    def _rest(self, state: int) -> int:
        return state | (state & self.stars) << 1


def compile_glob(pattern: str) -> Glob:
    r"""Compile a pattern; `\*` is a star that stands for itself."""
    steps: dict[str, int] = {}
    stars = 0
    position = 0
    chars = iter(pattern.replace("\\*", HELD))
    for char in chars:
        if char == "*":
            if position and stars >> (position - 1) & 1:
                continue
            stars |= 1 << position
        else:
            literal = "*" if char == HELD else char
            steps[literal] = steps.get(literal, 0) | 1 << position
        position += 1
    return Glob(steps=steps, stars=stars, end=1 << position)
