"""The paths that a commit never touches unless a rule names them, and those that it points out.

Each of them can make a program that the user starts later run something, or loosen what another
agent may do. An entry is one or more parts of a path, with `*` for anything within a part; it
matches wherever these parts follow each other, and everything below. Case does not count, since
it does not on some filesystems.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

GIT = (".git", ".gitconfig", ".gitmodules", ".husky")
AGENTS = (
    ".claude", ".claude.json", ".mcp.json", ".codex", ".cursor", ".cursorrules", ".gemini",
    ".aider*", ".continue", ".windsurf", ".windsurfrules", ".cline", ".clinerules", ".roo",
    ".opencode", ".goose", ".forkrun", ".agents",
)  # fmt: skip
EDITORS = (
    ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json",
    "*.code-workspace", ".vimrc", ".exrc", ".gvimrc", ".nvimrc", ".nvim.lua", ".vim", ".emacs",
    ".emacs.d", ".dir-locals.el", ".dir-locals-2.el", ".config/nvim", ".config/emacs",
)  # fmt: skip
SHELLS = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
    ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc",
    ".tcshrc", ".login", ".logout", ".inputrc", ".envrc", ".direnv", ".config/fish",
    ".config/powershell", ".config/direnv", ".ssh", ".ripgreprc", ".tmux.conf", ".screenrc",
)  # fmt: skip
INTERPRETERS = (
    "pyvenv.cfg", "sitecustomize.py", "usercustomize.py", "*.pth", ".pythonrc", ".pypirc",
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".gdbinit", ".lldbinit",
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
    "AGENTS.md", "CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md",
)  # fmt: skip

PROTECTED: tuple[str, ...] = (*GIT, *AGENTS, *EDITORS, *SHELLS, *INTERPRETERS)


def is_executed(path: str) -> bool:
    """Whether some program runs what is at the path, or does what it says, unasked."""
    return protected_part(path, protected=(*EXECUTED, *PROTECTED)) is not None


def protected_part(path: str, *, protected: Iterable[str] = PROTECTED) -> str | None:
    """Return the path down to the part that is protected ("a/.git"), or None."""
    parts = path.split("/")
    folded = [part.casefold() for part in parts]
    for pattern in protected:
        wanted = pattern.casefold().split("/")
        for start in range(len(parts) - len(wanted) + 1):
            here = folded[start : start + len(wanted)]
            if all(map(fnmatch.fnmatchcase, here, wanted)):
                return "/".join(parts[: start + len(wanted)])
    return None
