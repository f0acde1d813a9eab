"""Reading text: whatever the bytes, a text or one sentence."""

import errno
import os
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drill.errors import DataError
from drill.files import (
    NotWritten,
    decode_text,
    lines_of,
    mend_of_writing,
    read_text,
    remove_parts,
    write_whole,
)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "holds no words"),
        (b" \n\t\n\n", "holds no words"),
        (b"\xef\xbb\xbf", "holds no words"),
        (b"one line", "a single line"),
        (b"one line\n", "a single line"),
        (b"one line\r\n", "a single line"),
        (b"text\n\0\0", "byte 5 is NUL"),
        (b"caf\xe9\nau lait\n", "byte 3 is not UTF-8"),
        (b"\xef\xbb\xbfcaf\xe9\nau lait\n", "byte 6 is not UTF-8"),
        ("a\nb\n".encode("utf-16"), "byte 0 is not UTF-8|is NUL"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, raw, fault):
    path = tmp_path / "train.txt"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=fault) as caught:
        read_text(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(DataError, match="cannot be read"):
            read_text(path)


def test_line_ends_of_all_systems_and_a_mark_are_understood():
    assert decode_text(b"\xef\xbb\xbfa\r\nb\rc\n", "t") == "a\nb\nc\n"


def test_only_line_ends_end_lines():
    assert lines_of("a\u2028b\x0bc\nd") == ["a\u2028b\x0bc", "d"]
    assert lines_of("a\n\n") == ["a", ""]
    assert lines_of("") == []


@given(raw=st.one_of(st.binary(max_size=80), st.text(max_size=40).map(lambda t: t.encode())))
@settings(max_examples=150)
def test_bytes_of_any_kind_give_lines_or_one_sentence(raw):
    text, fault = "", ""
    try:
        text = decode_text(raw, "odd.txt")
    except DataError as error:
        fault = str(error)
    if fault:
        assert fault.startswith("odd.txt: ")
        assert "\n" not in fault
    else:
        assert len(lines_of(text)) >= 2
        assert any(line.split() for line in lines_of(text))
        assert "\r" not in text


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("content", "room"),
    [
        (b"ab", "; 1 KiB are needed"),
        (b"a" * (4 * 2**20), "; 4 MiB are needed"),
        (lambda stream: stream.write(b"ab"), ""),
    ],
)
def test_a_full_disk_is_told_with_the_file_and_its_size(tmp_path, monkeypatch, content, room):
    path = tmp_path / "held.json"
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(NotWritten) as caught:
        write_whole(path, content)
    assert str(caught.value) == (
        f"{path}: cannot be written (No space left on device{room}); make room or choose another "
        "place"
    )
    assert list(tmp_path.iterdir()) == []


def test_only_a_full_disk_asks_for_room(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritten) as caught:
        write_whole(tmp_path / "file" / "held.json", b"ab")
    assert "KiB" not in str(caught.value)


def test_a_right_that_is_missing_asks_for_no_room(tmp_path, monkeypatch):
    def denied(handle):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "fsync", denied)
    with pytest.raises(NotWritten) as caught:
        write_whole(tmp_path / "held.json", b"ab")
    assert str(caught.value) == (
        f"{tmp_path / 'held.json'}: cannot be written (Permission denied); get the right to write "
        "there or choose another place"
    )


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_names_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    far, link = tmp_path / "far" / "page", tmp_path / "link"
    if there:
        far.write_bytes(b"old")
    link.symlink_to(far)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert far.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "far", link]
    assert [*far.parent.iterdir()] == [far]


def test_parts_of_what_a_link_names_are_removed_too(tmp_path):
    (tmp_path / "far").mkdir()
    far, link = tmp_path / "far" / "page", tmp_path / "link"
    link.symlink_to(far)
    left = far.with_name(f".{far.name}.0123456789abcdef.tmp")
    left.write_bytes(b"cut o")
    remove_parts(link)
    assert not left.exists()


def test_links_in_a_ring_end_in_a_file_or_a_sentence(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    try:
        write_whole(one, b"new")
    except NotWritten:
        assert one.is_symlink()
    else:
        assert one.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.ENOSPC, "make room or choose another place"),
        (errno.EROFS, "get the right to write there or choose another place"),
        (errno.EISDIR, "choose another place"),
    ],
)
def test_what_can_be_done_depends_on_the_fault(number, mend):
    fault = NotWritten(Path("page"), OSError(number, "no"))
    assert str(fault) == f"page: cannot be written (no); {mend}"
    assert mend_of_writing(OSError(errno.EISDIR, "no")) == "see to that"


@pytest.mark.parametrize("content", [b"whole", lambda stream: stream.write(b"whole")])
def test_what_is_no_file_is_written_as_it_is(tmp_path, content):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, content)
    reader.join(30)
    assert read == [b"whole"]
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]
