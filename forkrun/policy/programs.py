"""What is known of programs and variables that run other programs.

Tables and the few functions that read them. They serve three ends: denials look through programs
that start others, permissions look through the few that do so plainly, and a rule that allows a
program which writes or executes is warned about.
"""

from __future__ import annotations

import re

import msgspec

from forkrun.policy.glob import WILD
from forkrun.policy.shell import Assignment, Command, Word


class Runner(msgspec.Struct, frozen=True):
    """A program that runs the command in its arguments, and how to find it there.

    `flags` stand alone, `valued` take the next word (or are followed by the value at once),
    `operands` is the number of words before the command. `appends` says that the command gets
    further arguments, `assigns` that `NAME=value` words may stand before it.
    """

    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    operands: int = 0
    appends: bool = False
    assigns: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# From their manual pages (coreutils 9, util-linux 2.38, findutils 4.9, bash 5.2).
RUNNERS: dict[str, Runner] = {
    "nohup": Runner(),
    "time": Runner(flags=_names("-p"), assigns=True),
    "command": Runner(flags=_names("-p")),
    "builtin": Runner(),
    "exec": Runner(flags=_names("-c -l -cl"), valued=_names("-a")),
    "nice": Runner(valued=_names("-n --adjustment")),
    "timeout": Runner(
        flags=_names("--foreground --preserve-status -v --verbose"),
        valued=_names("-k --kill-after -s --signal"),
        operands=1,
    ),
    "setsid": Runner(flags=_names("-c --ctty -f --fork -w --wait")),
    "stdbuf": Runner(valued=_names("-i --input -o --output -e --error")),
    "ionice": Runner(flags=_names("-t --ignore"), valued=_names("-c --class -n --classdata")),
    "env": Runner(
        flags=_names("-i --ignore-environment -"), valued=_names("-u --unset"), assigns=True
    ),
    "xargs": Runner(
        flags=_names("-0 --null -r --no-run-if-empty -t --verbose -x --exit"),
        valued=_names(
            "-n --max-args -P --max-procs -L --max-lines -s --max-chars -d --delimiter -I"
        ),
        appends=True,
    ),
}
# Those that an allow rule for the command behind them is enough for.
PLAIN_RUNNERS = frozenset({"nohup", "time", "command", "nice", "timeout", "stdbuf", "env", "xargs"})

# Programs whose arguments hold a command in a way that is not parsed here: every word counts.
OTHER_RUNNERS = _names(
    "sudo doas su runuser setpriv chroot unshare nsenter flock chrt taskset setarch linux32 "
    "linux64 parallel watch script strace ltrace unbuffer systemd-run start-stop-daemon busybox "
    "toybox entr trap coproc eval ssh dbus-run-session xvfb-run proot fakeroot faketime numactl "
    "prlimit cgexec mapfile readarray complete compgen bind"
)
# bash(1), "Reserved Words": a command of such a name is a part of the grammar that went unseen.
RESERVED = _names(
    "if then else elif fi do done case esac while until for select function { } [[ ]] in !"
)
SHELLS = _names("sh bash dash zsh ksh mksh ash fish rbash")
SOURCES = _names("source .")
# Built-ins that evaluate array subscripts in their arguments, substitutions included.
EVALUATORS = _names(
    "let printf read declare typeset local export readonly unset test [ mapfile readarray wait"
)
REDEFINERS = _names("alias enable hash")
FINDERS = {
    "find": _names("-exec -execdir -ok -okdir"),
    "fd": _names("-x --exec -X --exec-batch"),
    "fdfind": _names("-x --exec -X --exec-batch"),
}

# What a rule for the whole program admits besides what it is known for.
EXECUTES: dict[str, str] = {
    "find": "writes, deletes and executes (-delete, -exec, -fprint)",
    "fd": "executes (--exec)",
    "sed": "writes and executes (-i, w, e)",
    "awk": "writes and executes (print >, system)",
    "gawk": "writes and executes (print >, system)",
    "mawk": "writes and executes (print >, system)",
    "tar": "writes and executes (--checkpoint-action, --to-command)",
    "sort": "writes and executes (-o, --compress-program)",
    "uniq": "writes its second argument",
    "tee": "writes",
    "dd": "writes",
    "xxd": "writes (-r)",
    "man": "executes (-P, -H)",
    "less": "executes (!, LESSOPEN)",
    "more": "executes (!)",
    "rg": "executes (--pre)",
    "git": "executes (-c, aliases, hooks)",
    "make": "executes what the Makefile says",
    "npm": "executes",
    "npx": "executes",
    "ssh": "executes (ProxyCommand) and reaches other machines",
    "rsync": "executes (-e)",
    "zip": "executes (-TT)",
    "vi": "executes",
    "vim": "executes",
    "ed": "executes",
    "perl": "executes",
    "python": "executes",
    "python3": "executes",
    "ruby": "executes",
    "node": "executes",
    "xargs": "executes what follows it",
    **dict.fromkeys(sorted(RUNNERS.keys() - {"xargs"}), "executes what follows it"),
    **dict.fromkeys(sorted(OTHER_RUNNERS), "executes what is in its arguments"),
    **dict.fromkeys(sorted(SHELLS | SOURCES), "executes any command"),
}

# Variables that change which program runs, or what it runs, loads or reads as its configuration.
_DANGEROUS = re.compile(
    r"""(?x) IFS | ENV | TERM.* | DISPLAY | PS\d | CC | CXX | LD | AR | AS | .*RC
      | (LD|DYLD|GIT|SSH|BASH|PYTHON|PERL|RUBY|NODE|NPM|YARN|PIP|UV|JAVA|JDK|GO|CARGO|RUST|MAKE
         |CMAKE|LESS|MAN|LUA|PHP|GCONV|LOC|MALLOC|GLIBC|SUDO|DOCKER|KUBE|AWS|XDG|DBUS|GPG|PG|ZDOT).*
      | .*(PATH|OPT|FLAGS|COMMAND|CMD|PAGER|EDITOR|VISUAL|BROWSER|SHELL|ENV|HOME|CONFIG|CONF|DIR
         |PROG|EXEC|HOOK|INIT|STARTUP|PRELOAD|LIB|PROXY|MODULE|PLUGIN|WRAPPER|ASKPASS|TOOL|FILE
         |AGENT|RUNNER|COMPILER|LINKER|HOST|URL|SERVER|SOCK|OPEN).*
      | .*_proxy | npm_config_.* | BASH_FUNC_.*"""
)
_HOLDS_COMMAND = re.compile(
    r"(?i)ENV|BASH_ENV|PS4|PROMPT_COMMAND|GIT_.*|LESSOPEN|LESSCLOSE"
    r"|.*(PAGER|EDITOR|VISUAL|BROWSER|_COMMAND|_CMD|SHELL|WRAPPER|ASKPASS)"
)


def is_dangerous(variable: str) -> bool:
    """Say whether setting the variable may change what a command does beyond its arguments."""
    return _DANGEROUS.fullmatch(variable) is not None


def holds_command(variable: str) -> bool:
    """Say whether the shell or a common program runs the value of the variable."""
    return _HOLDS_COMMAND.fullmatch(variable) is not None


def base_name(word: Word) -> str:
    """Give the name of the program that a word stands for, without its directory."""
    return word.text.rpartition("/")[2]


def behind(command: Command) -> Command | None:
    """Give the command that a known runner runs, or None where it is not plain to see."""
    runner = RUNNERS.get(base_name(command.words[0]))
    if runner is None:
        return None
    words = list(command.words[1:])
    placeholder = None
    while words and words[0].text.startswith("-"):
        taken = _option_words(words[0].text, runner)
        if not taken or not all(word.is_known for word in words[:taken]):
            return None
        ended = words[0].text == "--"
        if words[0].text.startswith("-I") and runner.appends:
            placeholder = words[taken - 1].text.removeprefix("-I") or "-I"
        del words[:taken]
        if ended:
            break
    assignments = []
    while runner.assigns and words and (found := _as_assignment(words[0])):
        assignments.append(found)
        del words[0]
    rest = words[runner.operands :]
    if not rest:
        return None
    if placeholder is not None:
        rest = [_filled(word, placeholder=placeholder) for word in rest]
    more = (Word(raw="...", value=WILD),) if runner.appends and placeholder is None else ()
    return Command(tuple(assignments), (*rest, *more))


def _filled(word: Word, *, placeholder: str) -> Word:
    return Word(raw=word.raw, value=word.value.replace(placeholder, WILD))


def _option_words(option: str, runner: Runner) -> int:
    """Say how many words an option takes, 0 where it is not known."""
    name, _, value = option.partition("=")
    if option in runner.flags or option == "--":
        return 1
    if name in runner.valued:
        return 1 if value and name.startswith("--") else 2
    if option[:2] in runner.valued and not option.startswith("--"):
        return 1
    return 1 if re.fullmatch(r"-\d+", option) and "-n" in runner.valued else 0


def _as_assignment(word: Word) -> Assignment | None:
    name, equals, value = word.value.partition("=")
    if not equals or not re.fullmatch(r"\w+", name):
        return None
    return Assignment(name=name, value=Word(raw=value, value=value), raw=word.raw)
