"""What is kept of a command's output, and how it is cleaned."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkrun.tools.output import Kept, clean, cut


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b[38;5;196mx\x1b[K", "x"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1bPdevice\x1b\\x", "x"),
        (b"\x1b(Bx\x1b=\x1b>\x1b7\x1bM", "x"),
        (b"\x1b", ""),
        ("\x9b31mx".encode(), "x"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"\r1%\r2%\n", "2%\n"),
        (b"1%\r2%\r", "2%"),
        (b"a\r\nb\r\r\nc", "a\nb\nc"),
        (b"keep\n1\r2", "keep\n2"),
        (b"N\x08NA\x08A", "NA"),
        (b"|\x08/\x08-\x08done", "done"),
        (b"\x08x", "x"),
        (b"bell\x07", "bell"),
        (b"a\x00\x7f\x01b", "a\ufffd\ufffd\ufffdb"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_clean(raw, shown):
    """Only what a reader would see in the end is left."""
    assert clean(raw) == shown


@given(st.binary(max_size=300))
def test_clean_text_has_no_control_characters(raw):
    """Whatever comes in, nothing can act on a terminal."""
    text = clean(raw)
    assert not any(ord(character) < 32 and character not in "\t\n" for character in text)
    assert not any(0x7F <= ord(character) < 0xA0 for character in text)
    text.encode()


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 40), st.integers(2, 200))
def test_kept_is_bounded_and_true(chunks, kept_limit, limit):
    """Head and tail are those of the stream, and the bytes between are counted."""
    chunks = [bytes(byte % 26 + 97 for byte in chunk) for chunk in chunks]
    kept = Kept(limit=kept_limit)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks).decode()
    text = kept.text(limit=limit)
    assert len(text) <= limit + 50
    if "[… " not in text:
        assert text == whole
        return
    head, _, rest = text.partition("\n[… ")
    number, _, tail = rest.partition(" bytes dropped …]\n")
    assert whole.startswith(head) and whole.endswith(tail)
    assert len(head) + int(number) + len(tail) == len(whole)


def test_cut():
    """A short text stays as it is; a long one keeps both ends."""
    assert cut("abc", limit=3) == "abc"
    assert cut("a" * 50 + "b" * 50, limit=10) == "aaaaa\n[… 90 bytes dropped …]\nbbbbb"
