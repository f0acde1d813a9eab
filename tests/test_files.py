"""Files: text is read strictly, writes are atomic."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.errors import DataError
from drill.files import (
    WriteError,
    append_line,
    atomic_write,
    decode_text,
    lines_of,
    read_text,
)
from tests.helpers.files import disk_full


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"text\n\0\0", 2),
        (b"\xef\xbb\xbfcaf\xe9\nau lait\n", 1),
        ("a\nb\n".encode("utf-16"), 1),
    ],
)
def test_what_is_not_utf8_is_named(tmp_path, raw, line):
    path = tmp_path / "train.txt"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"{path}: line {line} is not UTF-8 text .*; convert the"):
        read_text(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(DataError, match="cannot be read"):
            read_text(path)


def test_only_line_ends_end_lines():
    assert lines_of("a\u2028b\x0bc\nd") == ["a\u2028b\x0bc", "d"]
    assert lines_of("a\n\n") == ["a", ""]
    assert lines_of("") == []


@given(raw=st.one_of(st.binary(max_size=80), st.text(max_size=40).map(lambda t: t.encode())))
def test_bytes_of_any_kind_give_lines_or_one_sentence(raw):
    try:
        text = decode_text(raw, "odd.txt")
    except DataError as error:
        assert str(error).startswith("odd.txt: line ")  # noqa: PT017 - some bytes are fine
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert text.encode() == raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


def test_a_failed_write_leaves_the_old_file_and_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(WriteError, match=f"^{path}: cannot be written .No space.*; check the path"):
        atomic_write(path, b"ab")
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("target", ["victim", "missing", "folder"])
def test_a_link_is_replaced_and_what_it_names_stays(tmp_path, target):
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    atomic_write(link, b"new")
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "folder", "link"}


def test_pipes_and_folders_are_not_replaced(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(WriteError, match=r"not a regular file|directory"):
            atomic_write(path, b"new")
    assert pipe.is_fifo()
    assert folder.is_dir()


def test_an_append_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_line(path, b"one\n")
    append_line(path, b"two\n")
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        append_line(path, b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"
