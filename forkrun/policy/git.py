"""Keep git's reading commands from running what a repository's configuration names.

`git diff` runs diff.external, `git status` core.fsmonitor and, when it refreshes the index, a hook.
Where rules allow git's reading commands, the commands of the child see a shell function in front of
git that switches these off; `-c`, which would switch them on again, does not meet such a rule.
"""

from __future__ import annotations

from forkrun.policy.shell import Command

# bash(1), "Functions": exported functions arrive by the environment under this name.
_FUNCTION = """() {
  local -a safe=(-c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.pager=cat
    -c log.showSignature=false -c diff.submodule=short -c status.submoduleSummary=false)
  case ${1-} in
    diff|log|show) local read=$1; shift
      command git "${safe[@]}" "$read" --no-ext-diff --no-textconv --ignore-submodules=dirty "$@" ;;
    status) shift
      GIT_OPTIONAL_LOCKS=0 command git "${safe[@]}" status --ignore-submodules=dirty "$@" ;;
    blame|grep|shortlog|describe|branch|tag|rev-parse|rev-list|ls-files|ls-tree|cat-file|reflog)
      command git "${safe[@]}" "$@" ;;
    *) command git "$@" ;;
  esac
}"""
ENVIRONMENT: dict[str, str] = {"BASH_FUNC_git%%": _FUNCTION}

# Options of reading commands that write a file or run a program, by git's manual pages (2.39).
# Git takes any unambiguous beginning of a long option.
_UNSAFE_LONG = (
    "--output",
    "--ext-diff",
    "--textconv",
    "--open-files-in-pager",
    "--show-signature",
    "--upload-pack",
    "--exec",
)
_READS = frozenset(
    {
        "diff",
        "log",
        "show",
        "status",
        "blame",
        "grep",
        "shortlog",
        "describe",
        "rev-parse",
        "rev-list",
        "ls-files",
        "ls-tree",
        "cat-file",
        "reflog",
        "ls-remote",
    }
)


def unsafe_option(command: Command) -> str | None:
    """Give the option of a git reading command that writes or executes, or None."""
    words = [word.text for word in command.words]
    if len(words) < 2 or words[0] != "git" or words[1] not in _READS:
        return None
    for word in words[2:]:
        if word == "--":
            break
        name = word.partition("=")[0]
        if len(name) > 3 and any(option.startswith(name) for option in _UNSAFE_LONG):
            return word
        if words[1] == "grep" and word.startswith("-O"):
            return word
    return None
