"""The paths that a commit never touches unless a rule names them, and those that it points out.

Each of them can make a program that the user starts later run something, or loosen what another
agent may do. An entry is one or more parts of a path, with `*` for anything within a part; it
matches wherever these parts follow each other, and everything below. Case does not count, since
it does not on some filesystems.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from forkrun.wildcards import anchored_regex

GIT = (
    ".git", ".gitconfig", ".gitmodules", ".config/git", ".git-credentials", ".husky", ".githooks",
    ".hg", ".hgrc", ".svn", ".jj", ".bzr",
)  # fmt: skip
AGENTS = (
    ".claude", ".claude.json", ".mcp.json", ".codex", ".cursor", ".cursorrules", ".gemini",
    ".aider*", ".continue", ".windsurf", ".windsurfrules", ".cline", ".clinerules", ".roo",
    ".opencode", ".goose", ".forkrun", ".agents",
    ".claude-plugin", ".cursor*", ".windsurf*", ".clinerules*", ".roo*", ".kilocode*", ".junie",
    ".trae", ".kiro", ".qwen", ".crush", ".crush.json", "crush.json", ".amazonq", ".augment*",
    ".copilot", ".factory", ".amp", ".warp", ".openhands", ".devin", ".pi", ".zencoder", ".tabnine",
    ".codeium", ".sourcegraph", "opencode.json", "opencode.jsonc", "mcp.json", "mcp_config.json",
    ".github/hooks",
)  # fmt: skip
EDITORS = (
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json",
    "*.code-workspace", ".vimrc", ".exrc", ".gvimrc", ".nvimrc", ".nvim.lua", ".vim", ".emacs",
    ".emacs.d", "*.sublime-project", "*.sublime-workspace", ".vs", ".theia", ".nova", ".helix",
    ".lvimrc", ".lazy.lua", ".nvim", ".externalToolBuilders",
    ".dir-locals.el", ".dir-locals-2.el", ".config/nvim", ".config/emacs", ".config/zed",
    ".kakrc", ".config/kak", ".config/helix",
)  # fmt: skip
SHELLS = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
    ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc",
    ".tcshrc", ".login", ".logout", ".inputrc", ".envrc", ".direnv", ".config/fish",
    ".config/powershell", ".config/direnv", ".ssh", ".ripgreprc", ".tmux.conf", ".screenrc",
    ".zsh*", ".bash_completion", ".xprofile", ".xinitrc", ".xsession", ".pam_environment",
    ".autoenv*", ".shadowenv.d", ".wezterm.lua", ".ackrc", ".netrc", ".curlrc", ".wgetrc",
    ".config/autostart", ".config/systemd", ".gnupg",
)  # fmt: skip
INTERPRETERS = (
    "pyvenv.cfg", "sitecustomize.py", "usercustomize.py", "*.pth", ".pythonrc", ".pypirc",
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".gdbinit", ".lldbinit", ".pdbrc",
    ".pdbrc.py", ".Rprofile", ".Renviron", ".irbrc", ".pryrc", ".rdbgrc", ".byebugrc", ".ghci",
    ".ocamlinit", ".iex.exs", ".erlang", ".ipython", ".jupyter", ".cargo/config",
    ".cargo/config.toml", ".psqlrc", ".sqliterc", ".my.cnf", "pip.conf", ".config/pip",
)  # fmt: skip

EXECUTED = (
    "Makefile", "GNUmakefile", "*.mk", "justfile", ".justfile", "Taskfile.yml", "Rakefile",
    "CMakeLists.txt", "meson.build", "SConstruct", "BUILD", "BUILD.bazel", "WORKSPACE",
    "conftest.py", "setup.py", "setup.cfg", "pyproject.toml", "pytest.ini", "tox.ini",
    "noxfile.py", "tasks.py", "fabfile.py", "manage.py", "package.json", "*.config.js",
    "*.config.cjs", "*.config.mjs", "*.config.ts", ".eslintrc.js", ".eslintrc.cjs", "gulpfile.js",
    "Gruntfile.js", "build.rs", ".cargo", "build.gradle", "build.gradle.kts", "settings.gradle",
    "gradlew", "mvnw", "pom.xml", "build.xml", "Gemfile", "composer.json", "flake.nix",
    "shell.nix", "default.nix", "Dockerfile", "Containerfile", "compose.y*ml",
    "docker-compose*.y*ml", "Vagrantfile", ".github/workflows", ".github/actions", ".gitlab-ci.yml",
    "Jenkinsfile", ".circleci", ".travis.yml", ".pre-commit-config.yaml", "lefthook.yml",
    ".gitattributes", ".tool-versions", ".mise.toml", "mise.toml", ".editorconfig",
    ".pylintrc", ".flake8", "mypy.ini", ".coveragerc", ".babelrc*", ".prettierrc*",
    ".stylelintrc*", ".lintstagedrc*", ".mocharc*", ".rspec", ".bazelrc", ".mvn",
    "gradle.properties", "*.gradle", "build.sbt", "mix.exs", "rebar.config", "Setup.hs",
    "Package.swift", "*.csproj", "*.vcxproj", "Directory.Build.*", "Procfile", "Tiltfile",
    "skaffold.yaml", "docker-bake.hcl", ".buildkite", ".drone.yml", ".woodpecker*",
    "azure-pipelines.yml", "bitbucket-pipelines.yml", "appveyor.yml", ".replit", ".mise",
)  # fmt: skip

# What agents are told in prose. Pointed out and not withheld: to bring them up to date is work that
# people give to subagents every day, and what they say is read as text, by an agent with rules of
# its own, where the settings above are executed.
INSTRUCTIONS = (
    "AGENTS.md", "AGENTS.override.md", "AGENT.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md",
    "QWEN.md", "CRUSH.md", "WARP.md", "CODEX.md", "CONVENTIONS.md", "SKILL.md", ".rules",
    ".goosehints", ".openhands_instructions", ".github/copilot-instructions.md",
    ".github/instructions", ".github/prompts", ".github/chatmodes", ".github/agents",
)  # fmt: skip

PROTECTED: tuple[str, ...] = (*GIT, *AGENTS, *EDITORS, *SHELLS, *INTERPRETERS)


class Protection:
    """Finds the protected part of paths; what is known of a directory is not asked again."""

    def __init__(self, patterns: Iterable[str] = PROTECTED) -> None:
        self._matchers = _matchers(tuple(patterns))
        self._parts: dict[str, str | None] = {"": None}

    def part(self, path: str) -> str | None:
        """Return the path down to the topmost part that is protected ("a/.git"), or None."""
        pending = []
        above = path
        while above not in self._parts:
            pending.append(above)
            above = above.rpartition("/")[0]
        part = self._parts[above]
        for each in reversed(pending):
            if part is None and self._ends_protected(each):
                part = each
            if each != path:
                self._parts[each] = part
        return part

    def _ends_protected(self, path: str) -> bool:
        for slashes, matcher in self._matchers:
            tail = path.rsplit("/", slashes + 1)[-slashes - 1 :]
            if len(tail) > slashes and matcher.fullmatch("/".join(tail).casefold()):
                return True
        return False


def executed(paths: Iterable[str]) -> tuple[str, ...]:
    """Choose the paths that some program runs, or does what they say, unasked."""
    protection = Protection((*EXECUTED, *INSTRUCTIONS, *PROTECTED))
    return tuple(path for path in paths if protection.part(path) is not None)


def protected_part(path: str, *, protected: Iterable[str] = PROTECTED) -> str | None:
    """Return the path down to the part that is protected ("a/.git"), or None."""
    return Protection(protected).part(path)


@functools.lru_cache(maxsize=8)
def _matchers(patterns: tuple[str, ...]) -> tuple[tuple[int, re.Pattern[str]], ...]:
    """Give one expression for each number of slashes: the last parts of a path are held against it.

    To translate some 250 patterns takes 3 ms, and a process has few sets of them.
    """
    groups: dict[int, list[str]] = {}
    for pattern in patterns:
        groups.setdefault(pattern.count("/"), []).append(pattern.casefold())
    return tuple(
        (slashes, re.compile("|".join(map(anchored_regex, group))))
        for slashes, group in groups.items()
    )
