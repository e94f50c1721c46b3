"""Run forkrun from this checkout, once it is certain that `.venv` holds what the checkout holds.

Started by `scripts/forkrun` as `.venv/bin/python -I -S scripts/_launch.py check …`. What is
installed is compared with the sources by size and modification time alone, which takes under a
millisecond; only where they differ is `_ready` called, and this file started anew. Without `site`
(-S) the interpreter starts sooner, and the one directory of packages is named here.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMPS = os.path.join(VENV, ".forkrun")
PACKAGES = {"forkrun": "forkrun", "forkrun_sandbox": "sandbox"}
"""Import name: folder of the checkout, as in `package-dir` of pyproject.toml."""
MADE_WITH = "made-with"
SOURCES = "sources"


def main() -> None:
    mode, arguments = sys.argv[1], sys.argv[2:]
    sys.executable = venv_python()
    if mode == "check" and not is_current("requirements.lock"):
        start_anew(arguments)
    sys.argv = ["forkrun", *arguments]
    sys.path[0] = site_packages()
    from forkrun.cli import main as forkrun_main

    sys.exit(forkrun_main())


def start_anew(arguments: list[str]) -> None:
    import subprocess

    ready = os.path.join(ROOT, "scripts", "_ready")
    status = subprocess.call(["/bin/sh", ready, "requirements.lock"])
    if status:
        sys.exit(status)
    python = venv_python()
    os.execv(python, [python, "-I", "-S", os.path.realpath(__file__), "ready", *arguments])


def is_current(lock: str) -> bool:
    """Tell whether `.venv` has these requirements and these very sources (and the Python that
    FORKRUN_PYTHON asks for, where it is set)."""
    wish = os.environ.get("FORKRUN_PYTHON")
    return (
        read_stamp(SOURCES) == fingerprint(source_files())
        and read_stamp(lock) == fingerprint([os.path.join(ROOT, lock)])
        and (not wish or read_stamp(MADE_WITH) == wish)
        and os.path.isdir(os.path.join(site_packages(), "forkrun"))
    )


def fingerprint(paths: list[str]) -> str:
    """Give a text that changes when a file changes, comes or goes, or the Python does."""
    lines = [sys.version]
    for path in paths:
        stat = os.stat(path)
        lines.append(f"{path[len(ROOT) :]} {stat.st_mtime_ns} {stat.st_size}")
    return "\n".join(lines)


def source_files() -> list[str]:
    """Give the paths of all files of our packages and of what describes them, sorted."""
    found = [os.path.join(ROOT, "pyproject.toml")]
    folders = [os.path.join(ROOT, folder) for folder in PACKAGES.values()]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__pycache__":
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                elif not entry.name.endswith((".pyc", "~")):
                    found.append(entry.path)
    return sorted(found)


def read_stamp(name: str) -> str | None:
    try:
        with open(os.path.join(STAMPS, name), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def site_packages() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(VENV, "lib", version, "site-packages")


def venv_python() -> str:
    return os.path.join(VENV, "bin", "python")


if __name__ == "__main__":
    main()
