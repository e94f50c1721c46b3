"""Find grants that come to nothing: a rule that allows what a parent forbids altogether.

Such a rule would be dropped in silence and the run end with its task undone, so it is refused when
the policy is made. A parent that takes away a part of what a rule allows is no conflict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from forkrun.errors import UsageError
from forkrun.policy.rules import Layer, Rule

_ANY = "\x01"  # stands in a sample for what a wildcard matches: no pattern names it


def refuse_conflicts(grants: Sequence[Rule], *, parents: Sequence[Layer]) -> None:
    """Raise UsageError for the first grant of which a parent leaves nothing, naming both rules."""
    for grant in grants:
        for layer in parents:
            for denial in (*layer.deny, *layer.ask):
                if _covers(denial, grant):
                    raise _conflict(grant, str(denial))
            if layer.allow and not any(_overlaps(allowed, grant) for allowed in layer.allow):
                raise _conflict(grant, " and ".join(map(str, layer.allow)) + ", and nothing else")


def _conflict(grant: Rule, other: str) -> UsageError:
    return UsageError(
        f"the rule {grant} comes to nothing under {other}",
        hint="a child has at most the rights of its parent: drop the rule or change the parent's",
    )


def _covers(denial: Rule, grant: Rule) -> bool:
    """Say whether the denial leaves nothing of the grant."""
    if not _concerns_all_of(denial, grant):
        return False
    if not denial.has_pattern:
        return True
    if denial.path is not None:
        return all(denial.path.matches(sample) for sample in _paths(grant))
    return all(any(g.matches(sample) for g in denial.globs) for sample in _texts(grant))


def _concerns_all_of(rule: Rule, grant: Rule) -> bool:
    if rule.tools is None:
        return True
    if grant.tools is None:
        return False
    if grant.mcp_server is not None:
        return rule.mcp_server == grant.mcp_server
    return all(rule.concerns(tool) for tool in grant.tools)


def _overlaps(allowed: Rule, grant: Rule) -> bool:
    """Say whether something may be allowed by both; true where that is not plain."""
    if not _share_a_tool(allowed, grant):
        return False
    if not (allowed.has_pattern and grant.has_pattern):
        return True
    if allowed.path is not None and grant.path is not None:
        return _heads_meet(allowed.path.names, grant.path.names)
    return _text_head(allowed).startswith(_text_head(grant)) or _text_head(grant).startswith(
        _text_head(allowed)
    )


def _share_a_tool(one: Rule, other: Rule) -> bool:
    if one.tools is None or other.tools is None:
        return True
    if one.mcp_server is not None:
        return other.mcp_server == one.mcp_server or any(map(one.concerns, other.tools))
    if other.mcp_server is not None:
        return any(map(other.concerns, one.tools))
    return not one.tools.isdisjoint(other.tools)


def _heads_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    for left, right in zip(one, other, strict=False):
        if any(char in left + right for char in "*?[\\"):
            return True
        if left != right:
            return False
    return True


def _text_head(rule: Rule) -> str:
    return re.split(r"[:*\\]", rule.pattern or "")[0].rstrip(" ")


def _paths(grant: Rule) -> list[str]:
    if grant.path is None:
        return [".", f"{_ANY}/{_ANY}"]
    names = [f"{_ANY}/{_ANY}" if n == "**" else _sample_name(n) for n in grant.path.names]
    return ["/".join(names)]


def _sample_name(name: str) -> str:
    return re.sub(r"\\(.)|\*+|\?|\[[!^]?.[^]]*\]", lambda m: m[1] or _ANY, name)


def _texts(grant: Rule) -> list[str]:
    if grant.pattern is None:
        return ["", _ANY]
    head = re.sub(r"(:| )\*$", "", grant.pattern)
    texts = [head] if head == grant.pattern else [head, f"{head} {_ANY}"]
    return [text.replace("*", _ANY) for text in texts]
