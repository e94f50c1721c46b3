"""Cases of the file and search tools, each played with the right value, and their siblings."""

import os
import time

import pytest
from support_tools import drive, opened

SJIS = "日\n".encode("shift_jis") + b"k=1\n"


def test_B01_edit_with_lf_in_a_crlf_file(box):
    """A multi-line edit lands in a CRLF file and leaves its line ends."""
    file = box.workspace / "w.txt"
    file.write_bytes(b"a\r\nb\r\nc\r\n")
    box.ok("edit_file", path="w.txt", old_string="a\nb", new_string="a\nX")
    assert file.read_bytes() == b"a\r\nX\r\nc\r\n"


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"a\r\nb\r\n", "a\r\nb", "a\r\nX", b"a\r\nX\r\n"),
        (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\nb\n", "a\r\nb", "a\r\nX", b"a\nX\n"),
        (b"a\nb\n", "b", "x\ny", b"a\nx\ny\n"),
        (b"a\nb\n", "a", "a\r", b"a\r\nb\n"),
        (b"1\r\n2\r\n3\r\na\nb\n", "a\nb", "c\nd", b"1\r\n2\r\n3\r\nc\nd\n"),
        (b"1\n2\n3\na\r\nb\n", "a\nb", "c\nd", b"1\n2\n3\nc\r\nd\n"),
    ],
)
def test_B01_line_ends_of_the_place_are_kept(box, content, old, new, expected):
    """New lines end as the lines around them do, whichever end the model wrote."""
    file = box.workspace / "f"
    file.write_bytes(content)
    box.ok("edit_file", file_path="f", old_string=old, new_string=new)
    assert file.read_bytes() == expected


def test_B03_byte_order_mark(box):
    """An edit at the very start keeps the mark, which no reader is shown."""
    file = box.workspace / "b.ini"
    file.write_bytes(b"\xef\xbb\xbfkey=1\n")
    text = box.ok("read_file", path="b.ini")
    assert text.startswith("     1\tkey=1\n") and "\ufeff" not in text
    assert "byte-order mark" in text
    box.ok("edit_file", path="b.ini", old_string="key=1", new_string="key=2")
    assert file.read_bytes() == b"\xef\xbb\xbfkey=2\n"


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_B03_utf_16_is_kept(box, codec):
    """A UTF-16 file is read as text and stays UTF-16."""
    mark = "\ufeff".encode(codec)
    file = box.workspace / "u.txt"
    file.write_bytes(mark + "größe=1\r\nb\r\n".encode(codec))
    assert "größe=1\n" in box.ok("read_file", file_path="u.txt")
    box.ok("edit_file", file_path="u.txt", old_string="größe=1\nb", new_string="größe=日\nb")
    assert file.read_bytes() == mark + "größe=日\r\nb\r\n".encode(codec)


def test_B04_latin_1_byte_far_from_the_edit(box):
    """An ASCII edit leaves bytes of another encoding as they are."""
    file = box.workspace / "l.py"
    file.write_bytes(b"x = 1\n# caf\xe9\n")
    box.ok("edit_file", path="l.py", old_string="x = 1", new_string="x = 2")
    assert file.read_bytes() == b"x = 2\n# caf\xe9\n"
    assert "not UTF-8" in box.ok("read_file", path="l.py")


@pytest.mark.parametrize(
    ("content", "old", "new"),
    [
        (SJIS, "k=1", "k=日"),
        (b"# caf\xe9\nx\n", "x", "é"),
        (b"# caf\xe9\nx\n", "café", "cafe"),
        (b"\x83A=1\n", "A=1", "B=1"),  # the A is half of a character
    ],
)
def test_B05_no_mix_of_encodings(box, content, old, new):
    """What cannot be written in the file's own encoding is refused, and nothing is changed."""
    file = box.workspace / "s.txt"
    file.write_bytes(content)
    assert "encoding" in box.fails("edit_file", path="s.txt", old_string=old, new_string=new)
    assert file.read_bytes() == content


@pytest.mark.parametrize("replace_all", [True, False])
@pytest.mark.parametrize("content", [b"abc", b""])
def test_B07_empty_old_string(box, content, replace_all):
    """An empty old_string is an error, also on an empty file."""
    file = box.workspace / "f"
    file.write_bytes(content)
    text = box.fails("edit_file", path="f", old_string="", new_string="X", replace_all=replace_all)
    assert "old_string must not be empty" in text
    assert file.read_bytes() == content


def test_B08_replacement_is_literal(box):
    """No sequence in the new text means anything."""
    file = box.workspace / "f"
    file.write_bytes(b"v=old\n")
    new = r"$& $$ $1 \1 \g<0> \n C:\new"
    box.ok("edit_file", path="f", old_string="old", new_string=new)
    assert file.read_bytes() == b"v=" + new.encode() + b"\n"


@pytest.mark.parametrize("old", ["a.b", "[x]", "(", "\\1", "a*", "^", "$&"])
def test_B08_old_string_is_literal(box, old):
    """No sequence in the old text means anything either."""
    file = box.workspace / "f"
    file.write_text(f"axb <{old}> aaa\n")
    box.ok("edit_file", path="f", old_string=old, new_string="Z")
    assert file.read_text() == "axb <Z> aaa\n"


def test_B09_delete_with_an_empty_new_string(box):
    """An empty new_string deletes; empty content empties; a missing key is an error."""
    file = box.workspace / "f"
    file.write_bytes(b"keep\ndrop\nkeep2\n")
    box.ok("edit_file", path="f", old_string="drop\n", new_string="")
    assert file.read_bytes() == b"keep\nkeep2\n"
    assert "new_string" in box.fails("edit_file", path="f", old_string="keep2")
    assert "content" in box.fails("write_file", path="f")
    assert file.read_bytes() == b"keep\nkeep2\n"
    box.ok("write_file", path="f", content="")
    assert file.read_bytes() == b""
    assert "empty" in box.ok("read_file", path="f")


def test_B10_more_than_one_match(box):
    """Two matches are an error that names both lines; replace_all changes both."""
    file = box.workspace / "f"
    file.write_bytes(b"x\ny\nx\n")
    text = box.fails("edit_file", path="f", old_string="x", new_string="z")
    assert "2 times" in text and "1, 3" in text
    assert file.read_bytes() == b"x\ny\nx\n"
    box.ok("edit_file", path="f", old_string="x", new_string="z", replace_all=True)
    assert file.read_bytes() == b"z\ny\nz\n"


def test_B12_no_newline_at_the_end(box):
    """Nothing is added at the end, by an edit or by a write."""
    file = box.workspace / "f"
    file.write_bytes(b"a\nb")
    box.ok("edit_file", path="f", old_string="b", new_string="c")
    assert file.read_bytes() == b"a\nc"
    box.ok("write_file", path="f", content="no end")
    assert file.read_bytes() == b"no end"


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o600, 0o444, 0o4711])
def test_B13_mode_bits(box, mode):
    """A replaced file keeps its mode, and no temporary file stays."""
    if mode == 0o444 and os.geteuid() != 0:
        pytest.skip("only root writes a read-only file")
    file = box.workspace / "x.sh"
    file.write_text("#!/bin/sh\necho a\n")
    file.chmod(mode)
    box.ok("edit_file", path="x.sh", old_string="echo a", new_string="echo b")
    assert file.stat().st_mode & 0o7777 == mode
    box.ok("write_file", path="x.sh", content="echo c\n")
    assert file.stat().st_mode & 0o7777 == mode
    assert os.listdir(box.workspace) == ["x.sh"]


def test_B13_new_file_has_the_usual_mode(box):
    """A new file gets 0666 without the umask, a new directory 0777 without it."""
    before = os.umask(0o027)
    try:
        box.ok("write_file", path="d/e/n", content="x")
    finally:
        os.umask(before)
    assert (box.workspace / "d/e/n").stat().st_mode & 0o7777 == 0o640
    assert (box.workspace / "d/e").stat().st_mode & 0o777 == 0o750
    assert os.listdir(box.workspace / "d/e") == ["n"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_B13_owner_is_kept(box):
    """A file of somebody else's stays theirs."""
    file = box.workspace / "f"
    file.write_text("a")
    os.chown(file, 12345, 54321)
    box.ok("edit_file", path="f", old_string="a", new_string="b")
    status = file.stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)


@pytest.mark.parametrize("kind", ["fifo", "socket", "link to fifo"])
def test_B15_fifo_never_blocks(box, kind):
    """What is no regular file is an error at once, for each file tool."""
    if kind == "socket":
        box.sh("python3 -c \"import socket;socket.socket(socket.AF_UNIX).bind('p')\"")
    else:
        box.sh("mkfifo p" if kind == "fifo" else "mkfifo q; ln -s q p")
    started = time.monotonic()
    for tool, more in (
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old_string": "a", "new_string": "b"}),
    ):
        assert "not a regular file" in box.fails(tool, path="p", **more)
    box.ok("grep", pattern="x")
    assert time.monotonic() - started < 3
    assert "p" in os.listdir(box.workspace)


def test_B17_device_proc_and_directory(box):
    """Devices and /proc are refused; a directory is named one, with a hint at glob."""
    assert "outside the workspace" in box.fails("read_file", path="/dev/zero")
    assert "outside the workspace" in box.fails("read_file", path="/proc/self/status")
    for path in (".", "d", "d/"):
        (box.workspace / "d").mkdir(exist_ok=True)
        text = box.fails("read_file", path=path)
        assert "directory" in text and "glob" in text
    for tool, more in (
        ("write_file", {"content": "x"}),
        ("edit_file", {"old_string": "a", "new_string": "b"}),
    ):
        assert "directory" in box.fails(tool, path="d", **more)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a device")
def test_B17_endless_device_inside(box):
    """A device in the workspace is refused by what it is, not by its name or size."""
    os.mknod(box.workspace / "z", 0o20666, os.makedev(1, 5))
    assert "not a regular file" in box.fails("read_file", path="z")
    box.ok("grep", pattern="x")


@pytest.mark.parametrize("path", ["a.txt/b", "a.txt/b/c"])
def test_B17_file_taken_for_a_directory(box, path):
    """A path through a file is an error without a traceback, and changes nothing."""
    (box.workspace / "a.txt").write_text("x")
    box.fails("read_file", path=path)
    box.fails("write_file", path=path, content="y")
    assert (box.workspace / "a.txt").read_text() == "x"


def test_B18_one_very_long_line(searcher):
    """A line of megabytes is cut with a note; grep shows what is around the hit."""
    (searcher.workspace / "min.js").write_text("a" * 3_000_000 + "needle" + "b" * 3_000_000)
    text = searcher.ok("read_file", path="min.js")
    assert len(text) < 4000 and "more characters in this line" in text
    text = searcher.ok("grep", pattern="needle", path=".")
    assert len(text) < 1000
    assert "aneedleb" in text and "line of 6000006 characters" in text


def test_B18_result_is_bounded_and_says_how_to_go_on(box):
    """A long file is shown in parts that together give every line."""
    lines = [f"line {number} " + "x" * 50 for number in range(1, 5001)]
    (box.workspace / "f").write_text("\n".join(lines) + "\n")
    seen = []
    offset = 1
    while offset:
        text = box.ok("read_file", path="f", offset=offset)
        assert len(text) < 31_000
        rows = text.split("\n")
        seen += [row.partition("\t")[2] for row in rows if "\t" in row]
        note = rows[-1]
        offset = int(note.rpartition(" ")[2].rstrip("]")) if "go on with" in note else 0
    assert seen == lines


@pytest.mark.parametrize("path", ["~/forkrun_probe.txt", "~", "~root/x"])
def test_B20_tilde(box, path):
    """A tilde is refused by every tool in the same words; no such directory is made."""
    calls = (
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": "x"}),
        ("edit_file", {"path": path, "old_string": "a", "new_string": "b"}),
        ("glob", {"pattern": path}),
        ("glob", {"pattern": "*", "path": path}),
        ("grep", {"pattern": "x", "path": path}),
    )
    for tool, arguments in calls:
        assert "~ is not expanded" in box.fails(tool, **arguments)
    assert os.listdir(box.workspace) == []


def test_B22_brackets_in_path_names(searcher):
    """A path is never a pattern, and a pattern that exists as written is that path."""
    searcher.sh(
        "mkdir -p 'app/[id]' 'app/[[...slug]]' app/i;"
        "echo x > 'app/[id]/page.tsx'; echo x > 'app/[[...slug]]/page.tsx'; echo x > app/i/page.tsx"
    )
    assert searcher.ok("read_file", path="app/[id]/page.tsx") == "     1\tx"
    assert searcher.ok("glob", pattern="app/[id]/page.tsx") == "app/[id]/page.tsx"
    assert searcher.ok("grep", pattern="x", path="app/[id]") == "app/[id]/page.tsx:1:x"
    assert searcher.ok("glob", pattern="app/[[...slug]]/*") == "app/[[...slug]]/page.tsx"
    assert searcher.ok("glob", pattern="**/[[...slug]]/*.tsx") == "app/[[...slug]]/page.tsx"
    found = searcher.ok("glob", pattern="app/[a-z]/*").split("\n")
    assert found == ["app/i/page.tsx"]


@pytest.mark.parametrize(
    "pattern", ["[z-a]", "a/**/[z-a]*", "{" * 30, "[", "[]", "\\", "{a,b" * 50]
)
def test_B22_invalid_pattern_is_no_crash(box, pattern):
    """A pattern that means nothing finds nothing or is an error result."""
    result = box("glob", pattern=pattern)
    assert "reason of its own" not in result.text


def test_B23_pattern_that_looks_like_an_option(searcher):
    """No pattern and no path acts as an option."""
    searcher.sh(
        "printf '%s\\n' '--release' '->x' > f; printf '#!/bin/sh\\ntouch PWNED\\n' > pre.sh;"
        "chmod +x pre.sh; mkdir -- --help; echo x > --help/g"
    )
    assert searcher.ok("grep", pattern="--release", path=".") == "f:1:--release"
    assert "no line matches" in searcher.ok("grep", pattern="--pre=./pre.sh", path=".")
    assert "no line matches" in searcher.ok("grep", pattern="-f/etc/passwd", path=".")
    assert searcher.ok("grep", pattern="x", path="--help") == "--help/g:1:x"
    assert searcher.ok("grep", pattern="x", path="f") == "f:2:->x"
    assert "no line matches" in searcher.ok("grep", pattern="x", glob="--pre=./pre.sh")
    assert not (searcher.workspace / "PWNED").exists()


def test_B24_search_over_a_huge_tree(searcher):
    """Vendored directories, .git and huge binary files cost next to nothing."""
    searcher.sh(
        "mkdir -p .git/o venv/lib big node_modules/a; echo needle > .git/o/x;"
        "(cd venv/lib; seq 1 5000 | xargs touch; echo needle > 1); echo needle > node_modules/a/i.js;"
        "truncate -s 100M big/model.bin; echo needle > a.txt"
    )
    started = time.monotonic()
    assert searcher.ok("grep", pattern="needle", path=".") == "a.txt:1:needle"
    assert searcher.ok("glob", pattern="**/*.*").split("\n") == ["a.txt", "big/model.bin"]
    assert time.monotonic() - started < 2
    assert searcher.ok("grep", pattern="needle", path="node_modules") == (
        "node_modules/a/i.js:1:needle"
    )


def test_B24_partial_hits_at_the_limit(ws, monkeypatch):
    """At its own limit a search gives what it has, and says so."""
    (ws / "a.txt").write_text("aaa b\n")
    (ws / "b.txt").write_text("a" * 5000 + "\n")
    (ws / "c.txt").write_text("aaa b\n")
    monkeypatch.setattr("forkrun.tools.searching.LIMIT_S", 0.3)
    with opened(ws, env={"PATH": "/nowhere"}) as box:
        started = time.monotonic()
        text = box.ok("grep", pattern=r"(a+)+ b")
    assert time.monotonic() - started < 2
    assert text.startswith("a.txt:1:aaa b\n")
    assert "stopped after 0.3 s" in text


def test_B27_write_from_a_stale_read(box):
    """A write over what changed since it was read is refused, and the change stays."""
    file = box.workspace / "n.md"
    file.write_text("seed\n")
    box.ok("read_file", path="n.md")
    file.write_text("seed\nA\n")
    assert "changed since" in box.fails("write_file", path="n.md", content="seed\nB\n")
    assert file.read_text() == "seed\nA\n"
    box.ok("read_file", path="n.md")
    box.ok("write_file", path="n.md", content="seed\nA\nB\n")
    box.ok("write_file", path="./n.md", content="again\n")


def test_B27_same_size_and_same_time(box):
    """The content decides, not size and time."""
    file = box.workspace / "n.md"
    file.write_text("aaaa")
    status = file.stat()
    box.ok("read_file", path="n.md")
    file.write_text("bbbb")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    box.fails("write_file", path="n.md", content="cccc")
    assert file.read_text() == "bbbb"


def test_B27_seen_under_another_name(box):
    """A link is no way around it: what counts is the file."""
    (box.workspace / "n.md").write_text("1")
    (box.workspace / "l.md").symlink_to("n.md")
    box.ok("read_file", path="l.md")
    (box.workspace / "n.md").write_text("2")
    box.fails("write_file", path="n.md", content="3")


def test_B27_an_edit_is_not_a_read(box):
    """After an edit over an unseen change a whole write is still refused."""
    file = box.workspace / "n.md"
    file.write_text("a\n")
    box.ok("read_file", path="n.md")
    file.write_text("a\nforeign\n")
    box.ok("edit_file", path="n.md", old_string="a\n", new_string="b\n")
    assert file.read_text() == "b\nforeign\n"
    box.fails("write_file", path="n.md", content="b\n")


def test_A24_picture_that_is_none(box):
    """The first bytes decide what is a picture."""
    (box.workspace / "fake.png").write_text("<html>no</html>")
    result = box("read_file", path="fake.png")
    assert not result.images and "<html>no</html>" in result.text
    (box.workspace / "really.txt").write_bytes(b"\xff\xd8\xff\xe0rest")
    result = box("read_file", path="really.txt")
    assert [image.media_type for image in result.images] == ["image/jpeg"]
    assert result.images[0].content == b"\xff\xd8\xff\xe0rest"
    (box.workspace / "doc.pdf").write_bytes(b"%PDF-1.4\nx")
    assert "PDF" in box.fails("read_file", path="doc.pdf")
    (box.workspace / "b.bin").write_bytes(b"\x7fELF\0\0\0")
    assert "binary" in box.fails("read_file", path="b.bin")
    (box.workspace / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(6 * 1024 * 1024))
    assert "at most" in box.fails("read_file", path="big.png")


def test_C26_full_disk_leaves_the_old_file(ws):
    """Where there is no room a write is an error and the old file is whole."""
    if os.system("unshare -rm true 2>/dev/null"):
        pytest.skip("user namespaces cannot be made here")
    (ws / "d").mkdir()
    script = (
        'mount -t tmpfs -o size=64k none "$0/d" && echo old > "$0/d/f" &&'
        ' { head -c 1M /dev/zero > "$0/d/full" 2>/dev/null; "$@" && cat "$0/d/f" > "$0/after" &&'
        ' ls -A "$0/d" >> "$0/after"; }'
    )
    calls = [
        ("write_file", {"path": "d/f", "content": "new" * 1000}),
        ("edit_file", {"path": "d/f", "old_string": "old", "new_string": "x" * 9000}),
        ("write_file", {"path": "d/g", "content": "new" * 10000}),
    ]
    before = ["unshare", "-rm", "bash", "-c", script, str(ws)]
    for result in drive(ws, calls, before=before):
        assert result["is_error"] and "No space left" in result["text"]
    assert (ws / "after").read_text() == "old\nf\nfull\n"


def test_C26_size_limit_leaves_the_old_file(ws):
    """The same for a limit on the size of files, where writing in place must not be tried."""
    (ws / "f").write_text("old")
    before = ["bash", "-c", 'ulimit -f 4; "$@"', "sh"]
    results = drive(ws, [("write_file", {"path": "f", "content": "x" * 9000})], before=before)
    assert results[0]["is_error"] and "File too large" in results[0]["text"]
    assert (ws / "f").read_text() == "old"
    assert os.listdir(ws) == ["f"]


@pytest.mark.parametrize("directory", ["rw", "ro"])
def test_B13_a_file_that_is_mounted_is_written_in_place(ws, directory):
    """A file that cannot be renamed over is written in place, also in a read-only directory."""
    if os.system("unshare -rm true 2>/dev/null"):
        pytest.skip("user namespaces cannot be made here")
    (ws / "f").write_text("a long old content\n")
    (ws / "other").write_text("o")
    remount = 'mount --bind "$0" "$0" && ' if directory == "ro" else ""
    read_only = ' && mount -o remount,bind,ro "$0"' if directory == "ro" else ""
    script = f'{remount}mount --bind "$0/f" "$0/f"{read_only} && "$@"'
    calls = [
        ("edit_file", {"path": "f", "old_string": "long", "new_string": "s"}),
        ("write_file", {"path": "f", "content": "new\n"}),
        ("write_file", {"path": "other", "content": "p"}),
    ]
    results = drive(ws, calls, before=["unshare", "-rm", "bash", "-c", script, str(ws)])
    assert [result["is_error"] for result in results] == [False, False, directory == "ro"], results
    assert (ws / "f").read_text() == "new\n"
    assert sorted(os.listdir(ws)) == ["f", "other"]


def test_F15_sibling_with_the_same_beginning(ws):
    """A directory beside the workspace is outside, whatever its name begins with."""
    secret = ws.parent / "ws-secret"
    secret.mkdir()
    (secret / "c").write_text("s")
    with opened(ws) as box:
        calls = (
            ("read_file", {"path": "../ws-secret/c"}),
            ("read_file", {"path": f"{secret}/c"}),
            ("write_file", {"path": f"{secret}/n", "content": "x"}),
            ("edit_file", {"path": f"{secret}/c", "old_string": "s", "new_string": "x"}),
            ("glob", {"pattern": "../ws-secret/*"}),
            ("glob", {"pattern": f"{secret}/*"}),
            ("glob", {"pattern": "*", "path": "../ws-secret"}),
            ("grep", {"pattern": "s", "path": "../ws-secret"}),
        )
        for tool, arguments in calls:
            result = box(tool, **arguments)
            assert result.denied and "outside the workspace" in result.text, (tool, arguments)
    assert os.listdir(secret) == ["c"] and (secret / "c").read_text() == "s"


def test_F16_links_that_leave(ws):
    """A link to the outside is refused, dangling or not, last or in the middle."""
    (ws.parent / "outside.txt").write_text("o")
    (ws / "n.md").symlink_to("../outside.txt")
    (ws / "d.md").symlink_to("../not-yet.txt")
    (ws / "a.md").symlink_to(ws.parent / "outside.txt")
    (ws / "up").symlink_to("..")
    (ws / "chain").symlink_to("up")
    with opened(ws) as box:
        for path in ("n.md", "d.md", "a.md", "up/y.txt", "chain/y.txt", "up/ws/../y.txt"):
            assert box("write_file", path=path, content="X").denied, path
            assert box("read_file", path=path).denied, path
            assert box("edit_file", path=path, old_string="o", new_string="X").denied, path
        assert box("read_file", path="up/secret").denied
        assert box("grep", pattern="o", path="up").denied
        assert "outside.txt" not in box.ok("grep", pattern="o")
    assert sorted(os.listdir(ws.parent)) == ["outside.txt", "ws"]
    assert (ws.parent / "outside.txt").read_text() == "o"


def test_F16_links_that_stay(ws):
    """Links within the workspace work, relative and absolute; so does a workspace by a link."""
    (ws / "real").mkdir()
    (ws / "rel").symlink_to("real")
    (ws / "abs").symlink_to(ws / "real")
    (ws / "new.md").symlink_to("real/later.md")
    link = ws.parent / "link"
    link.symlink_to("ws")
    (ws / "by-link").symlink_to(link / "real")
    with opened(link) as box:
        box.ok("write_file", path="rel/a", content="1")
        box.ok("write_file", path="abs/b", content="2")
        box.ok("write_file", path="new.md", content="3")
        box.ok("write_file", path="by-link/c", content="4")
        assert "1" in box.ok("read_file", path=f"{link}/real/a")
        assert "1" in box.ok("read_file", path=f"{ws}/real/a")
        assert box.ok("bash", command="pwd").strip() == str(link)
        assert (ws / "new.md").is_symlink()
    assert sorted(os.listdir(ws / "real")) == ["a", "b", "c", "later.md"]


def test_F16_loop_of_links(box):
    """A loop of links is an error."""
    box.sh("ln -s b a; ln -s a b")
    assert "symbolic links" in box.fails("read_file", path="a")
    box.ok("glob", pattern="**/*")


@pytest.mark.parametrize(
    "path",
    [
        "./a/../../ws-out.txt",
        "{ws}/../../etc/hostname",
        "a/./..//../x",
        "/proc/self/root/etc/hostname",
        "/proc/self/cwd/../x",
        "/dev/fd/0/../x",
        "..",
        "{ws}/..",
        "/",
    ],
)
def test_F18_dots_in_the_path(box, path):
    """No path with dots, and no magic link, leads out."""
    (box.workspace / "a").mkdir()
    path = path.format(ws=box.workspace)
    for tool, more in (
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": "x"}),
        ("glob", {"pattern": path}),
        ("grep", {"pattern": "x", "path": path}),
    ):
        assert box(tool, **more).denied, tool
    assert sorted(os.listdir(box.workspace.parent)) == ["ws"]


def test_F18_rules_see_the_resolved_path(ws):
    """A rule is asked about where a path leads, not about how it is written."""
    (ws / "src").mkdir()
    (ws / "secret").write_text("s")
    (ws / "src" / "link").symlink_to("../secret")
    asked = []

    def judge(tool, path):
        asked.append((tool, path))
        return None if path.startswith("src/") else "only src is allowed"

    with opened(ws, judge=judge) as box:
        for path in ("src/../secret", "src/link", f"{ws}/src/./..//secret"):
            result = box("read_file", path=path)
            assert result.denied and result.text == "only src is allowed"
        assert not box("write_file", path="src/new", content="x").is_error
    assert set(asked) == {("read_file", "secret"), ("write_file", "src/new")}
