"""The environments of a child: built from a list of what may be there, never by taking away.

Nothing of the parent's environment arrives that is not named here or by the user, so no key, token,
proxy, PYTHON*, LD_* or GIT_* does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from forkrun.errors import ConfigurationError

MAX_VARIABLE_BYTES = 128 * 1024
PASSED_ON = (
    "TZ",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "JAVA_HOME",
    "GOROOT",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "NVM_DIR",
    "RUSTUP_HOME",
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

GIT_SETTINGS = {
    "safe.directory": "*",
    "user.name": "forkrun subagent",
    "user.email": "subagent@forkrun.invalid",
    "init.defaultBranch": "main",
}


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of the worker itself, which needs next to nothing."""
    return {"PATH": search_path(environ), "LC_ALL": "C.UTF-8"}


def command_environment(
    environ: Mapping[str, str], *, home: str, tmp: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """Give the environment of the commands that a tool runs.

    `home` and `tmp` are private directories; `extra` is what the user asked for, and wins.
    """
    passed = {name: environ[name] for name in PASSED_ON if environ.get(name)}
    return {
        **passed,
        "PATH": search_path(environ),
        "HOME": home,
        "TMPDIR": tmp,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        # The workspace is a mount of its own, and its git directory may lie above it: git(1).
        "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",
        **git_environment(GIT_SETTINGS),
        **extra,
    }


def search_path(environ: Mapping[str, str]) -> str:
    """Give PATH without entries that depend on the working directory.

    Raises ConfigurationError for one that no program could be started with.
    """
    entries = [e for e in environ.get("PATH", "").split(":") if e.startswith("/")]
    path = ":".join(dict.fromkeys([*entries, *SYSTEM_PATH.split(":")]))
    if not fits("PATH", path):
        raise ConfigurationError(
            f"PATH is too long to start a program with: {len(path)} characters"
        )
    return path


def fits(name: str, value: str) -> bool:
    """Say whether execve(2) takes a variable: NAME=VALUE and its NUL, at most 128 KiB together."""
    return len(os.fsencode(f"{name}={value}")) < MAX_VARIABLE_BYTES


def git_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Give settings to git by the environment (git-config(1), GIT_CONFIG_COUNT)."""
    pairs = {}
    for number, (key, value) in enumerate(settings.items()):
        pairs[f"GIT_CONFIG_KEY_{number}"] = key
        pairs[f"GIT_CONFIG_VALUE_{number}"] = value
    return {"GIT_CONFIG_COUNT": str(len(settings)), **pairs}
