"""Read the plain part of bash a second time, by other means.

Plain are lists and pipelines of simple commands. What an allow rule admits must be read alike here
and by the parser of `shell`: two readers with different faults seldom agree on a wrong answer.
Tokens are those of bash(1), "Definitions" and "Shell Grammar"; what is more has no reading here.
"""

from __future__ import annotations

import re

from forkrun.policy.shell import Script

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_CONTROL = re.compile(r"\|\||&&|\|&|;(?!;)|&(?!>)|\||\n")
_CLOSING = (">&-", "<&-")
_REDIRECT = re.compile(r"(?:\d*(?=[<>])|(?=&>))(>&-|<&-|>>|>\||>&|<&|<<<|>|<(?![<>])|&>>|&>)(?!\()")
_PIECE = re.compile(
    r"""[^\s\\'"$`;&|()<>]            # a character that means itself
      | \\[^\n]
      | '[^']*'
      | "(?:[^"\\$`] | \\. | \$\w+ | \$\{\w+\} | \$[?$!@*\#-])*"
      | \$'(?:[^'\\]|\\.)*'
      | \$[A-Za-z_]\w* | \$\{\w+\} | \$[0-9?$!@*\#-]
    """,
    re.VERBOSE | re.DOTALL,
)


def agrees(text: str, script: Script) -> bool:
    """Say whether this reading of the text has the same words and redirections as the parser's."""
    parsed = [[*(a.raw for a in c.assignments), *(w.raw for w in c.words)] for c in script.commands]
    return read_plain(text) == (parsed, [redirect.raw for redirect in script.redirects])


def read_plain(text: str) -> tuple[list[list[str]], list[str]] | None:
    """Give the words of each simple command as written, and the redirections without their
    descriptors; None for what is more than plain."""
    commands: list[list[str]] = [[]]
    redirects: list[str] = []
    position = 0
    operator = ""  # a redirection that waits for its target
    while position < len(text):
        found = _BLANK.match(text, position) or _COMMENT.match(text, position)
        if found:
            position = found.end()
        elif found := _CONTROL.match(text, position):
            if operator:
                return None
            commands.append([])
            position = found.end()
        elif found := _REDIRECT.match(text, position):
            if operator:
                return None
            operator, position = found[1], found.end()
            if operator in _CLOSING:
                redirects.append(operator)
                operator = ""
        else:
            end = _word_end(text, position)
            if end == position or (text[end : end + 1] in ("<", ">") and text[position] == "{"):
                return None
            word, position = text[position:end], end
            if operator:
                if operator != "<<<":
                    redirects.append(operator + word)
                operator = ""
            elif word != "!" or commands[-1]:
                commands[-1].append(word)
    return None if operator else ([words for words in commands if words], redirects)


def _word_end(text: str, start: int) -> int:
    end = start
    while found := _PIECE.match(text, end):
        end = found.end()
    return end
