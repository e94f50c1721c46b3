"""What a command finds in its environment beside what the run gives it.

Nobody is there to answer: no pager may wait for a key, no editor for a text, no program for a
password. The values stand over those of the run, since they describe how commands are run here.
"""

from __future__ import annotations

from collections.abc import Mapping

UNATTENDED = {
    # No pager, in git and elsewhere.
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    # An editor that takes the text as it is.
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    # Nobody types a password.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    "DEBIAN_FRONTEND": "noninteractive",
    # Nobody looks at colours or progress bars.
    "TERM": "dumb",
    "NO_COLOR": "1",
    # What was printed before a time limit is not lost in a buffer.
    "PYTHONUNBUFFERED": "1",
    "LC_ALL": "C.UTF-8",
}


def command_environment(given: Mapping[str, str], *, workspace: str) -> dict[str, str]:
    """Give the whole environment of a command that starts in the workspace."""
    return {**given, **UNATTENDED, "PWD": workspace}
