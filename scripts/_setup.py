"""Make `.venv` hold a lock file's packages and our own, installed: `_setup.py LOCK`.

Called by `_ready` with the Python that `.venv` is to be made with, or with the one inside it. Says
on stderr what it does, and holds a lock meanwhile, so that two first calls do not meet. Our own
packages are copied, not linked: what runs is laid out as the wheel lays it out, starts without an
import hook, and does not change under a running process but file by file, whole. Byte code is made
here, since a confined child could not keep it.

A `.venv` that was left half made is made again. One that somebody else made is added to.
"""

import compileall
import contextlib
import fcntl
import filecmp
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
sys.dont_write_bytecode = True

from _launch import (  # noqa: E402
    MADE_WITH,
    PACKAGES,
    ROOT,
    SOURCES,
    STAMPS,
    VENV,
    fingerprint,
    is_current,
    read_stamp,
    site_packages,
    source_files,
    venv_python,
)

MAKING = os.path.join(STAMPS, "making")


class SetupError(Exception):
    """The set-up cannot go on; the second argument is a hint."""


def main() -> None:
    lock, *rest = sys.argv[1:]
    try:
        if rest == ["locked"]:
            fill_venv(lock)
        else:
            with locked():
                set_up(lock)
    except SetupError as error:
        message, hint = error.args
        sys.exit(f"forkrun: {message}\nhint: {hint}")
    except KeyboardInterrupt:
        sys.exit(130)


def set_up(lock: str) -> None:
    if not venv_is_whole():
        make_venv()
    if in_venv():
        fill_venv(lock)
    else:
        status = run([venv_python(), "-I", "-S", os.path.realpath(__file__), lock, "locked"])
        if status:
            sys.exit(status)


# --- the virtual environment -------------------------------------------------


def venv_is_whole() -> bool:
    """Tell whether there is a `.venv` that was made to the end, with the Python asked for."""
    wish = os.environ.get("FORKRUN_PYTHON")
    if os.path.exists(MAKING) or not venv_runs():
        return False
    if wish and read_stamp(MADE_WITH) != wish:
        if base_python() != os.path.realpath(venv_python()):
            return False
        write_stamp(MADE_WITH, wish)
    return True


def venv_runs() -> bool:
    """Tell whether the interpreter of `.venv` starts and has the packages that belong to it (which
    an upgrade of the Python below it takes away)."""
    if in_venv():
        return os.path.isdir(os.path.join(site_packages(), "pip"))
    code = "import sys, importlib.util as u; sys.exit(not u.find_spec('pip'))"
    argv = [venv_python(), "-I", "-c", code]
    return os.path.exists(argv[0]) and subprocess.call(argv, stderr=subprocess.DEVNULL) == 0


def make_venv() -> None:
    python = base_python()
    if os.path.lexists(VENV) and not os.path.isdir(STAMPS):
        raise SetupError(
            f"this .venv was not made by us, and it does not run or has no pip: {VENV}",
            "move it away and run this again",
        )
    say(f"making .venv with Python {sys.version.split()[0]}: {python}")
    shutil.rmtree(VENV, ignore_errors=True)
    os.makedirs(STAMPS)
    write_stamp("making", python)
    if run([python, "-I", "-m", "venv", VENV]):
        raise SetupError("the virtual environment could not be made", "see above what it says")
    write_stamp(MADE_WITH, os.environ.get("FORKRUN_PYTHON") or python)
    os.unlink(MAKING)


def base_python() -> str:
    """Give the real path of this interpreter, also when it is called through a venv of its own."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def in_venv() -> bool:
    return os.path.dirname(os.path.abspath(sys.executable)) == os.path.dirname(venv_python())


# --- what is in it -----------------------------------------------------------


def fill_venv(lock: str) -> None:
    if is_current(lock):
        return
    install_requirements(lock)
    copy_sources()


def install_requirements(lock: str) -> None:
    """Install a lock file, unless its very text was installed before."""
    names = (lock, *CONTAINED.get(lock, ()))
    stamps = {name: fingerprint([os.path.join(ROOT, name)]) for name in names}
    stamps |= {f"{name}.installed": digest(name) for name in names}
    if read_stamp(f"{lock}.installed") != stamps[f"{lock}.installed"]:
        with open(os.path.join(ROOT, lock), encoding="utf-8") as file:
            count = sum(line[:1].isalnum() for line in file)
        say(f"installing {count} packages, pinned by hash: {lock}")
        started = time.monotonic()
        pip_install(os.path.join(ROOT, lock))
        say(f"installed in {time.monotonic() - started:.1f} s")
    for name, stamp in stamps.items():
        write_stamp(name, stamp)


CONTAINED = {"requirements-dev.lock": ("requirements.lock",)}
"""The lock files whose every pin stands in another one too."""


def digest(lock: str) -> str:
    with open(os.path.join(ROOT, lock), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest() + "\n" + sys.version


def pip_install(path: str) -> None:
    python = venv_python()
    env = {k: v for k, v in os.environ.items() if k not in PIP_ELSEWHERE}
    pip = [python, "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    flags = ["--require-hashes", "--only-binary", ":all:", "--no-compile"]
    if run([*pip, *flags, "-r", path], env=env):
        raise SetupError(
            "the packages could not be installed; see above",
            "is there a way to a package index? Run this again when there is",
        )
    workers = min(4, os.cpu_count() or 1)
    # Some packages ship sources for other Pythons, which do not compile here: no matter.
    run([python, "-I", "-m", "compileall", "-qq", "-j", str(workers), site_packages()], env=env)


PIP_ELSEWHERE = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
"""Settings of pip that would install somewhere else than in `.venv`."""


def copy_sources() -> None:
    """Make our installed packages equal the checkout's; write only what differs."""
    files = source_files()
    stamp = fingerprint(files)
    wanted = {}
    for name, folder in PACKAGES.items():
        start = os.path.join(ROOT, folder) + os.sep
        for path in files:
            if path.startswith(start):
                wanted[os.path.join(site_packages(), name, path[len(start) :])] = path
    changed = [target for target in wanted if not same(wanted[target], target)]
    if changed:
        say(f"installing forkrun itself: {len(changed)} of {len(wanted)} files are new")
    for target in changed:
        copy(wanted[target], target)
    for name in PACKAGES:
        folder = os.path.join(site_packages(), name)
        remove_what_is_gone(folder, wanted)
        compileall.compile_dir(folder, quiet=2)
    write_metadata()
    link_for_mypy()
    write_stamp(SOURCES, stamp)


def write_metadata() -> None:
    """Tell `importlib.metadata` name and version, as an installed wheel does."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    name = project["name"].replace("-", "_")
    folder = os.path.join(site_packages(), f"{name}-{project['version']}.dist-info")
    for other in glob.glob(os.path.join(glob.escape(site_packages()), f"{name}-*.dist-info")):
        if other != folder:
            shutil.rmtree(other)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as file:
        file.write(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )


def link_for_mypy() -> None:
    """Let mypy find `sandbox/` under its import name: what is installed it would not report on."""
    folder = os.path.join(STAMPS, "mypy")
    os.makedirs(folder, exist_ok=True)
    link = os.path.join(folder, "forkrun_sandbox")
    if not os.path.islink(link):
        os.symlink("../../../sandbox", link)


def same(source: str, target: str) -> bool:
    try:
        return filecmp.cmp(source, target, shallow=True)
    except OSError:
        return False


def copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part = f"{target}.part"
    shutil.copy2(source, part)
    os.replace(part, target)


def remove_what_is_gone(folder: str, wanted: dict[str, str]) -> None:
    for here, _, names in os.walk(folder, topdown=False):
        for name in names:
            origin = os.path.join(here, name)
            if os.path.basename(here) == "__pycache__":
                origin = os.path.join(os.path.dirname(here), name.split(".")[0] + ".py")
            if origin not in wanted:
                os.unlink(os.path.join(here, name))
        if not os.listdir(here):
            os.rmdir(here)


# --- small things ------------------------------------------------------------


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of this checkout's set-up."""
    path = os.path.join(ROOT, ".venv.lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SetupError(
            f"the .venv of this checkout is not up to date ({error.strerror}): {ROOT}",
            "make it writable for this call, or copy it to a place that is",
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another set-up of this checkout")
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def run(argv: list[str], *, env: dict[str, str] | None = None) -> int:
    """Run a command with everything it says on stderr; return its status."""
    return subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=2, env=env)


def say(text: str) -> None:
    print(f"forkrun: {text}", file=sys.stderr, flush=True)


def write_stamp(name: str, text: str) -> None:
    path = os.path.join(STAMPS, name)
    os.makedirs(STAMPS, exist_ok=True)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    main()
