"""What a run may do: rules read once, judged at every tool call, alike in the child and the parent.

    Rules (text) ─▶ Policy ─▶ judge(tool, subject)      None, or why not
                          ├─▶ writable, unreadable      what the kernel and a commit are told
                          └─▶ warnings                  rules that admit more than they seem to

Deny before allow, whatever the order. A policy has layers: the run's own rules and those of its
parents; each must allow, so a child has at most its parent's rights. The rules are the first gate;
the kernel, which is told of the files by `writable` and `unreadable`, is the second.

`rules` reads one rule, `paths` and `glob` match, `shell` and `plain` read commands, `bash` judges
them, `programs` and `git` are what is known of programs, `conflicts` finds grants that come to
nothing, `scope` says what the sandbox is told.
"""

from __future__ import annotations

from forkrun.policy.policy import Policy, decode_rules

__all__ = ["Policy", "decode_rules"]
