"""Walking and searching: what git ignores, and that both engines give the same."""

import os
import shutil
import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_tools import PATH, opened

from forkrun.tools.paths import Workspace
from forkrun.tools.patterns import name_matcher, path_matcher
from forkrun.tools.walking import walk

NAMES = ["a", "b", "foo", "foo.py", "x.txt", "build", ".env", "a b"]
LINES = st.lists(
    st.sampled_from(
        [
            *(
                "*.py",
                "foo",
                "foo/",
                "/foo",
                "!foo",
                "!*.py",
                "**/b",
                "a/**",
                "a/*",
                "/a/b",
                "b/foo",
            ),
            *(
                "!a/b",
                "*",
                "!*/",
                "[ab]",
                "f?o",
                "*.txt ",
                "#x",
                "",
                "a b",
                "\\!x",
                ".*",
                "!/a/",
                "a//b",
            ),
        ]
    ),
    max_size=5,
)
PATHS = st.lists(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8
)


def lay(root, paths):
    """Make files, and pass over those that are in each other's way."""
    for path in paths:
        try:
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "x") as file:
                file.write("needle\n")
        except OSError:
            continue


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(paths=PATHS, top=LINES, below=LINES)
def test_ignore_files_mean_what_git_means(tmp_path_factory, paths, top, below):
    """The walk gives the files that git would not ignore."""
    root = tmp_path_factory.mktemp("repo")
    lay(root, paths)
    (root / ".gitignore").write_text("\n".join(top) + "\n")
    if (root / "a").is_dir():
        (root / "a" / ".gitignore").write_text("\n".join(below) + "\n")
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    listed = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-oz", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    expected = sorted(os.fsdecode(path) for path in listed.split(b"\0") if path)
    with Workspace(str(root)) as workspace:
        assert sorted(walk(workspace, ".")) == expected


def test_ignore_files_above_the_start(searcher):
    """A search in a directory honours the ignore files above it, and .git/info/exclude."""
    searcher.sh(
        "mkdir -p .git/info a/b; echo '*.log' > .gitignore; echo secret > .git/info/exclude;"
        "echo b/x > a/.gitignore; for f in x y.log secret z; do echo needle > a/b/$f; done"
    )
    assert searcher.ok("grep", pattern="needle", path="a/b") == "a/b/z:1:needle"
    assert searcher.ok("glob", pattern="**/*", path="a/b") == "a/b/z"


def test_virtual_environment_by_any_name(searcher):
    """A directory with a pyvenv.cfg is passed over, unless it is where the search starts."""
    searcher.sh(
        "mkdir -p my/env/lib; touch my/env/pyvenv.cfg; echo needle > my/env/lib/x; echo needle > my/y"
    )
    assert searcher.ok("grep", pattern="needle") == "my/y:1:needle"
    assert searcher.ok("grep", pattern="needle", path="my/env") == "my/env/lib/x:1:needle"


def test_glob_of_a_search_respects_ignore_files(searcher):
    """A file that a glob names is still left out when it is ignored."""
    searcher.sh(
        "echo ignored.py > .gitignore; echo needle | tee ignored.py seen.py other.txt .hidden.py >/dev/null"
    )
    assert searcher.ok("grep", pattern="needle", glob="*.py") == (
        ".hidden.py:1:needle\nseen.py:1:needle"
    )
    assert searcher.ok("grep", pattern="needle", glob="!*.py") == "other.txt:1:needle"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^caf", ["latin:1:caf\ufffd", "utf8:1:café"]),
        ("^b", ["crlf:2:b", "nl:2:b"]),
        ("^a$", ["crlf:1:a", "nl:1:a"]),
        ("größe", ["utf16:1:größe", "utf8:2:größe"]),
        ("^key", ["bom:1:key"]),
        (r"\bword\b", ["words:1:one word"]),
        ("(?i)WORD", ["words:1:one word", "words:2:sword"]),
        ("(?<=s)word", ["words:2:sword"]),
        ("in", []),
    ],
)
def test_both_engines_give_the_same(searcher, pattern, expected):
    """Encodings, line ends and the usual syntax mean the same with and without ripgrep."""
    files = {
        "latin": b"caf\xe9\n",
        "utf8": "café\ngröße\n".encode(),
        "crlf": b"a\r\nb\r\n",
        "nl": b"a\nb",
        "utf16": b"\xff\xfe" + "größe\r\n".encode("utf-16-le"),
        "bom": b"\xef\xbb\xbfkey\n",
        "words": b"one word\nsword\n",
        "binary": b"\0\1inside\n",
    }
    for name, content in files.items():
        (searcher.workspace / name).write_bytes(content)
    text = searcher.ok("grep", pattern=pattern)
    assert text == ("\n".join(expected) or "[no line matches]")


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "(?P<x", "*", "\\"])
def test_invalid_expression(searcher, pattern):
    """An expression that is not valid is an error that says why."""
    (searcher.workspace / "f").write_text("x\n")
    assert "not a valid regular expression" in searcher.fails("grep", pattern=pattern)


@pytest.mark.parametrize("pattern", ["a\nb", r"a\nb"])
def test_no_line_breaks_in_an_expression(searcher, pattern):
    """What can never match is said to be so."""
    assert "line break" in searcher.fails("grep", pattern=pattern)
    assert "no line matches" in searcher.ok("grep", pattern=r"C:\\new")


def test_expression_that_backtracks_for_ever(ws, monkeypatch):
    """It ends with a note, and leaves no timer behind."""
    (ws / "f").write_text("a" * 100 + "\n")
    monkeypatch.setattr("forkrun.tools.searching.LIMIT_S", 0.3)
    monkeypatch.setattr("forkrun.tools.listing.LIMIT_S", 0.3)
    started = time.monotonic()
    with opened(ws, env={"PATH": "/nowhere"}) as box:
        assert "stopped after 0.3 s" in box.ok("grep", pattern="(a|aa)+$x")
        (ws / ("a" * 200)).write_text("")
        box.ok("glob", pattern="a*" * 30 + "b")
    assert time.monotonic() - started < 3


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
def test_ripgrep_at_the_limit(ws, monkeypatch, tmp_path):
    """A ripgrep that hangs is ended, and what it found so far stands."""
    slow = tmp_path / "bin"
    slow.mkdir()
    rg = shutil.which("rg")
    (slow / "rg").write_text(f'#!/bin/bash\nPATH={PATH}\n{rg} "$@" | head -n 2\nsleep 300.108\n')
    (slow / "rg").chmod(0o755)
    monkeypatch.setattr("forkrun.tools.searching.LIMIT_S", 0.5)
    (ws / "f").write_text("needle\n")
    with opened(ws, env={"PATH": f"{slow}:{PATH}"}) as box:
        assert box.ok("grep", pattern="needle") == (
            "f:1:needle\n[stopped after 0.5 s: there may be more]"
        )


def test_newest_first(box):
    """glob gives the file that changed last first."""
    for age, name in enumerate(["c", "a", "b"]):
        (box.workspace / name).write_text("")
        os.utime(box.workspace / name, (1000 - age, 1000 - age))
    assert box.ok("glob", pattern="*") == "c\na\nb"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "d/e/a.py", True),
        ("d/**", "d/e/a.py", True),
        ("d/**/a.py", "d/a.py", True),
        ("?.py", "ab.py", False),
        ("[!a].py", "b.py", True),
        ("[!a].py", "a.py", False),
        ("[^a].py", "a.py", False),
        ("[a-c]x", "bx", True),
        ("[]x]", "]", True),
        ("*.{ts,tsx}", "a.tsx", True),
        ("*.{ts,tsx}", "a.js", False),
        ("{a,b}/{c,d}", "b/c", True),
        ("a.c", "abc", False),
        (".*", ".x", True),
        ("*", ".x", True),
        (r"\*.py", "*.py", True),
        (r"\*.py", "a.py", False),
        (r"[\]]", "]", True),
        ("a[/]b", "a/b", False),
    ],
)
def test_patterns(pattern, path, matches):
    """A pattern means what shells and models mean by it."""
    assert bool(path_matcher(pattern).search(path)) is matches


def test_patterns_never_backtrack():
    """A pattern of many stars is done with a name that it misses before anybody notices."""
    began = time.thread_time()
    for pattern in ("*a" * 60 + "*b", "**/*a*/" * 60 + "b", "{" + "*a" * 30 + ",c}*b"):
        assert not path_matcher(pattern).match("aa/" * 60 + "a" * 200)
        assert not name_matcher(pattern).match("a" * 200)
    assert time.thread_time() - began < 2


def test_name_patterns():
    """Without a slash a pattern is about the name, wherever the file is."""
    assert name_matcher("*.py").search("d/e/a.py")
    assert name_matcher("/*.py").search("a.py") and not name_matcher("/*.py").search("d/a.py")
    assert name_matcher("d/*.py").search("d/a.py") and not name_matcher("d/*.py").search("e/d/a.py")


def test_deep_tree(searcher):
    """Depth costs neither recursion nor descriptors."""
    path = "/".join(["d"] * 1200)
    subprocess.run(["mkdir", "-p", path], cwd=searcher.workspace, check=True)
    subprocess.run(["bash", "-c", f"echo needle > {path}/f"], cwd=searcher.workspace, check=True)
    found = searcher.ok("glob", pattern="**/f"), searcher.ok("grep", pattern="needle")
    subprocess.run(["rm", "-rf", "d"], cwd=searcher.workspace, check=True)
    assert found == (f"{path}/f", f"{path}/f:1:needle")
