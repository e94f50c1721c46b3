"""The rules of a run, parsed: made once from text, frozen, and asked at every tool call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from forkrun.errors import InputError
from forkrun.policy.rules import PATH_TOOLS, Effect, Layer, Rule, parse_rule, squeeze
from forkrun.protocol import Rules

if TYPE_CHECKING:
    from forkrun.policy.scope import Unreadable, WritableScope
    from forkrun.policy.shell import Script


class Policy(msgspec.Struct, frozen=True):
    """Layers of rules, each of which must allow a call; with no rules at all everything is allowed.

    `layers` is what crosses to the child, the parents' first; `warnings` are sentences about rules
    that admit more than they seem to, or nothing.

    >>> policy = forkrun.Policy.parse(allow=["bash(git log:*)", "read"])
    >>> policy.judge("bash", "git log --oneline") is None
    True
    >>> policy.judge("bash", "rm -rf .")
    '`rm -rf .` is not allowed: ...'
    """

    layers: tuple[Rules, ...]
    parsed: tuple[Layer, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        ask: Sequence[str] = (),
        parents: Sequence[Policy | Rules] = (),
    ) -> Self:
        """Make the policy of a run under those of its parents.

        Raises InputError for a rule that cannot be meant, with the rule and its position, and for
        one that grants what a parent denies, with both rules.
        """
        from forkrun.policy.conflicts import refuse_conflicts

        inherited: list[Rules] = []
        for parent in parents:
            inherited += parent.layers if isinstance(parent, Policy) else [parent]
        own = Rules(allow=tuple(allow), deny=tuple(deny), ask=tuple(ask))
        policy = cls.of((*inherited, own))
        grants = policy.parsed[-1].allow
        refuse_conflicts(grants, parents=policy.parsed[:-1])
        return msgspec.structs.replace(policy, warnings=tuple(_warnings(grants)))

    @classmethod
    def of(cls, layers: Sequence[Rules]) -> Self:
        """Make the policy of layers as they crossed the channel, the run's own last.

        What `parse` found to warn about or to refuse is not looked for again.
        """
        last = len(layers) - 1
        parsed = tuple(
            _parse_layer(rules, origin="" if position == last else "the parent's ")
            for position, rules in enumerate(layers)
        )
        return cls(layers=tuple(layers), parsed=parsed)

    def judge(self, tool: str, subject: str | None = None) -> str | None:
        """Say why this call is not allowed, in words for the model, or None where it is.

        `subject` is what the tool is used on: for file tools the resolved path, relative to the
        workspace ("." for itself; absolute where it lies outside), for bash the command.
        """
        script = _Once(subject or "") if tool == "bash" else None
        for effect in ("deny", "ask"):
            for layer in self.parsed:
                rules = layer.deny if effect == "deny" else layer.ask
                reason = _forbidden(tool, subject, rules=rules, script=script)
                if reason is not None:
                    return reason
        for layer in self.parsed:
            if layer.allow:
                reason = self._not_admitted(tool, subject, layer=layer, script=script)
                if reason is not None:
                    return reason
        return None

    def may_write(self, path: str) -> bool:
        """Say whether a file of the workspace may be written, by whichever tool."""
        return self.judge("write_file", path) is None or self.judge("edit_file", path) is None

    def writable(self) -> WritableScope:
        """Say what of the workspace may be written at all, for the sandbox and for a commit."""
        from forkrun.policy.scope import writable_of

        return writable_of(
            [(layer.allow, (*layer.deny, *layer.ask)) for layer in self.parsed],
            may_write=self.may_write,
        )

    def unreadable(self) -> Unreadable:
        """Say which files of the workspace deny rules withhold from tools and kernel alike."""
        from forkrun.policy.scope import unreadable_of

        return unreadable_of(rule for layer in self.parsed for rule in (*layer.deny, *layer.ask))

    def environment_for(self, command: str) -> dict[str, str]:
        """Give the variables that a bash command gets beside its others: where rules allow single
        git commands, those that keep git from running what a repository's configuration names."""
        from forkrun.policy import git

        is_restricted = any(
            any(rule.concerns("bash") for rule in layer.allow) and not _admits_all_of_bash(layer)
            for layer in self.parsed
        )
        return dict(git.ENVIRONMENT) if is_restricted and "git" in command else {}

    def prepare(self) -> None:
        """Import the shell parser now where a rule may need it: before confinement, say."""
        if any(
            rule.globs and rule.concerns("bash")
            for layer in self.parsed
            for rule in (*layer.allow, *layer.ask, *layer.deny)
        ):
            from forkrun.policy import bash, shell, tree  # noqa: F401 - imported for later

            shell.load_parser()

    def _not_admitted(
        self, tool: str, subject: str | None, *, layer: Layer, script: _Once | None
    ) -> str | None:
        rules = [rule for rule in layer.allow if rule.concerns(tool)]
        if any(not rule.has_pattern for rule in rules):
            return None
        if script is not None and rules:
            from forkrun.policy import bash

            reason = bash.not_allowed(
                script.text, rules=rules, script=script.read(), may_write=self._names_writable
            )
            return None if reason is None else f"{reason}: {_only(rules)}"
        if tool in PATH_TOOLS:
            path = _inside(subject)
            if path is not None and any(rule.path and rule.path.matches(path) for rule in rules):
                return None
        elif any(glob.matches(squeeze(subject or "")) for rule in rules for glob in rule.globs):
            return None
        what = f"{tool} on {subject}" if rules else tool
        return f"{what} is not allowed: {_only(layer.allow)}"

    def _names_writable(self, path: str) -> bool:
        return self.judge("write_file", path) is None


class _RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


def decode_rules(text: bytes | str, *, source: str) -> Rules:
    """Read the rules of a parent: a JSON object with the lists `allow`, `deny` and `ask`.

    `source` names where the text comes from. Raises InputError for what is something else, and for
    a rule that cannot be meant.
    """
    try:
        read = msgspec.json.decode(text, type=_RulesFile)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(
            f"{source} is not a policy: {error}",
            hint='expected an object like {"allow": ["read"], "deny": ["bash"]}',
        ) from error
    rules = Rules(allow=read.allow, deny=read.deny, ask=read.ask)
    _parse_layer(rules, origin=f"{source}: ")
    return rules


class _Once:
    """A command that is read when it has to be, and then once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._script: Script | None = None

    def read(self) -> Script:
        from forkrun.policy.shell import read_script

        if self._script is None:
            self._script = read_script(self.text)
        return self._script


def _parse_layer(rules: Rules, *, origin: str) -> Layer:
    def parse(texts: Iterable[str], effect: Effect) -> tuple[Rule, ...]:
        return tuple(
            parse_rule(text, effect=effect, position=position, origin=origin)
            for position, text in enumerate(texts, start=1)
        )

    return Layer(
        allow=parse(rules.allow, "allow"),
        ask=parse(rules.ask, "ask"),
        deny=parse(rules.deny, "deny"),
    )


def _forbidden(
    tool: str, subject: str | None, *, rules: Sequence[Rule], script: _Once | None
) -> str | None:
    """Say which of these denying rules forbids the call, or None."""
    concerned = [rule for rule in rules if rule.concerns(tool)]
    for rule in concerned:
        if not rule.has_pattern:
            return _denied(rule)
    if script is not None:
        return _forbidden_command(script, rules=concerned) if concerned else None
    if tool in PATH_TOOLS:
        if ".." in (subject or "").split("/"):
            return "a path with `..` in it is not resolved and cannot be judged"
        path = (subject or ".").removeprefix("./").strip("/") or "."
        matching = [rule for rule in concerned if rule.path and rule.path.matches(path)]
    else:
        text = squeeze(subject or "")
        matching = [rule for rule in concerned if any(glob.matches(text) for glob in rule.globs)]
    return _denied(matching[0]) if matching else None


def _forbidden_command(script: _Once, *, rules: Sequence[Rule]) -> str | None:
    from forkrun.policy import bash

    found = bash.denial(script.text, rules=rules, script=script.read())
    if found is None:
        return None
    if found.is_certain:
        return _denied(found.rule, part=found.part)
    return f"{_denied(found.rule)}, as far as can be told from {found.part}"


def _denied(rule: Rule, *, part: str | None = None) -> str:
    what = f"`{part if len(part) <= 200 else part[:197] + '...'}` is " if part else ""
    if rule.effect == "ask":
        return f"{what}denied by the rule {rule}: there is nobody to ask in this run"
    return f"{what}denied by the rule {rule}"


def _inside(subject: str | None) -> str | None:
    """Give a subject as a path relative to the workspace, None where it lies outside."""
    if subject is not None and (subject.startswith("/") or ".." in subject.split("/")):
        return None
    return (subject or ".").removeprefix("./").rstrip("/") or "."


def _only(rules: Sequence[Rule]) -> str:
    """Say in words what these rules allow."""
    said = list(dict.fromkeys(_in_words(rule) for rule in rules))
    shown = said[:8] + ([f"{len(said) - 8} more"] if len(said) > 8 else [])
    listed = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
    return f"only {listed} {'is' if len(shown) == 1 else 'are'} allowed"


def _in_words(rule: Rule) -> str:
    name, bracket, pattern = rule.text.partition("(")
    if not bracket:
        return name
    pattern = pattern.removesuffix(")")
    if rule.path is not None:
        names = sorted(rule.tools or ())
        return f"{names[0] if len(names) == 1 else name} on {pattern}"
    return f"{name} with `{pattern}`"


def _admits_all_of_bash(layer: Layer) -> bool:
    return any(rule.concerns("bash") and not rule.has_pattern for rule in layer.allow)


def _warnings(rules: Iterable[Rule]) -> Iterator[str]:
    for rule in rules:
        if not rule.globs or not rule.concerns("bash"):
            continue
        from forkrun.policy.programs import EXECUTES

        words = rule.text.partition("(")[2].removesuffix(")").replace(":*", " *").split()
        program = words[0].rpartition("/")[2] if words else ""
        if "*" in program:
            yield f"{rule}: this rule allows any program"
        elif program in EXECUTES and words[1:2] in ([], ["*"]) and words[-1] == "*":
            yield f"{rule}: {program} {EXECUTES[program]}, and this rule allows all of it"
        elif any(mark in rule.text for mark in ("&&", "||", ";", "$(", "`")) or "\n" in rule.text:
            yield f"{rule}: commands are judged one by one, so this rule matches none"
