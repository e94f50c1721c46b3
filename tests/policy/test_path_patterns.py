"""Path patterns are gitignore's, read to the narrower right where a reader could be in doubt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkrun.policy.paths import compile_path


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        ("session-memory.md", ["session-memory.md"], ["a/session-memory.md", "Session-memory.md"]),
        ("/a", ["a", "a/b"], ["b/a", "ab"]),
        ("./a", ["a"], ["b/a"]),
        ("src/**", ["src/a", "src/a/b", "src/a\n"], ["src2/a", "srcs", "a/src/b", "src"]),
        ("src/*", ["src/a", "src/.a"], ["src/a/b", "src"]),
        ("src/*.py", ["src/a.py"], ["src/a.pyc", "src/a.py/b", "src/b/a.py"]),
        ("**/*.py", ["a.py", "b/a.py", "c/b/a.py"], ["a.pyc"]),
        ("src/**/t", ["src/t", "src/a/t", "src/a/b/t/x"], ["src/at", "src"]),
        ("**", ["a", "a/b", "."], []),
        ("out/", ["out", "out/a"], ["outs"]),
        ("a?c", ["abc", "a\nc"], ["a/c", "ac"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a]x", ["bx"], ["ax", "/x"]),
        ("\\*", ["*"], ["a"]),
        ("a\udc80", ["a\udc80"], ["a\udc81", "a\ufffd"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_an_allow_pattern_is_anchored_and_narrow(
    pattern: str, covered: list[str], not_covered: list[str]
) -> None:
    """It covers what it names at the top of the workspace, and deeper only with `**` or a name."""
    compiled = compile_path(pattern, deny=False)
    assert [path for path in covered if not compiled.matches(path)] == []
    assert [path for path in not_covered if compiled.matches(path)] == []


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        (".env", [".env", "a/.env", "a/.env/b"], [".envrc", "a.env"]),
        ("/.env", [".env"], ["a/.env"]),
        ("secrets/*", ["secrets/a", "secrets/a/b.txt", "secrets"], ["a/secrets/b", "secrets2/a"]),
        ("secrets/**", ["secrets/a", "secrets/a/b", "secrets"], ["secrets2"]),
        ("secrets/", ["secrets", "secrets/a", "x/secrets/a"], ["secrets2"]),
        ("*.pem", ["a.pem", "b/a.pem", "a.pem/x"], ["a.pem2"]),
        ("**", ["a", "a/b", "."], []),
        ("*", ["a", "a/b", "."], []),
        ("a/b", ["a/b", "a/b/c"], ["c/a/b", "a"]),
    ],
)
def test_a_deny_pattern_covers_what_a_reader_takes_it_to_cover(
    pattern: str, covered: list[str], not_covered: list[str]
) -> None:
    """A bare name at any depth, and everything beneath."""
    compiled = compile_path(pattern, deny=True)
    assert [path for path in covered if not compiled.matches(path)] == []
    assert [path for path in not_covered if compiled.matches(path)] == []


PARTS = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b", "?", "[ab]", "[!a]", ".x", "a.b"])
PATHS = [
    "/".join(names)
    for one in ("a", "b", "ab", ".x", "a.b", "axb")
    for names in ([one], [one, "a"], ["a", one], ["b", one, "ab"], ["a", "b", one])
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty repository."""
    path = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    return path


@given(names=st.lists(PARTS, min_size=1, max_size=3), is_anchored=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_deny_pattern_covers_all_that_git_would_ignore(
    repository: Path, names: list[str], is_anchored: bool
) -> None:
    """Git itself is the judge; beyond it, `x/*` and `x/**` cover the directory x as well."""
    pattern = "/" * is_anchored + "/".join(names)
    (repository / ".gitignore").write_text(pattern + "\n")
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=repository,
        input="\0".join(PATHS) + "\0",
        capture_output=True,
        text=True,
        check=False,
    )
    ignored = set(done.stdout.split("\0")) - {""}
    ours = {path for path in PATHS if compile_path(pattern, deny=True).matches(path)}
    assert ignored <= ours
    if names[-1] not in ("*", "**"):
        assert ours == ignored
