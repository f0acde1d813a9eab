"""Files: text is read strictly, writes are atomic, and nothing is written through a link."""

import errno
import os
from pathlib import Path
from threading import Thread

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
    write_output,
)
from tests.helpers.files import disk_full


@pytest.mark.parametrize(
    ("raw", "fault", "hint"),
    [
        (b"text\n\0\0", "line 2 has a NUL byte", "name a text file"),
        (b"\xef\xbb\xbfcaf\xe9\nau lait\n", "line 1 is not UTF-8", "iconv -f latin1"),
        ("a\nb\n".encode("utf-16"), "line 1 is not UTF-8", "iconv -f utf-16"),
        ("a\nb\n".encode("utf-16-le"), "line 1 has a NUL byte", "iconv -f utf-16le"),
        ("aé\nb\n".encode("utf-16-be"), "line 1 has a NUL byte", "utf-16be"),
        ("a\nb\n".encode("utf-32"), "line 1 is not UTF-8", "iconv -f utf-32"),
        (b"\0\0\xfe\xff" + "a\n".encode("utf-32-be"), "line 1 has a NUL byte", "iconv -f utf-32"),
    ],
)
def test_what_is_not_utf8_is_named(tmp_path, raw, fault, hint):
    path = tmp_path / "train.txt"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"{path}: {fault}.*{hint}"):
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


@pytest.mark.parametrize(
    ("number", "content", "reason", "hint"),
    [
        (errno.ENOSPC, b"a" * 2**22, "; 4.0 MiB are needed", "free disk space or choose another"),
        (errno.ENOSPC, lambda stream: stream.write(b"ab"), "", "free disk space or choose another"),
        (errno.EROFS, b"ab", "", "get write permission or choose another path"),
        (errno.EIO, b"ab", "", "choose another path"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_says_what_to_do(
    tmp_path, monkeypatch, number, content, reason, hint
):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "model.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError) as caught:
        atomic_write(path, content)
    assert caught.value.reason == os.strerror(number) + reason
    assert caught.value.hint.startswith(hint)
    assert str(caught.value).startswith(f"{path}: cannot be written (")
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("target", ["victim", "missing", "link", "folder", "/dev/full"])
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


@pytest.fixture(params=["pipe", "folder", "/dev/full", "/dev/null"])
def special(request, tmp_path):
    """Something that is not a regular file; it must survive."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    path = tmp_path / request.param
    if not path.exists():
        pytest.skip(f"there is no {path} here")
    before = path.stat()
    yield path
    assert os.path.samestat(path.stat(), before)


def test_pipes_devices_and_folders_are_an_error_at_once(special):
    with pytest.raises(WriteError, match=r"not a regular file|directory"):
        atomic_write(special, b"new")
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        append_line(special, b"new\n")


def test_an_append_refuses_links(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "metrics.jsonl"
    victim.write_bytes(b"mine")
    for target in (victim, tmp_path / "missing", "/dev/full"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(OSError, match="not a regular file"):
            append_line(link, b"{}\n")
    assert victim.read_bytes() == b"mine"
    assert not (tmp_path / "missing").exists()


def test_an_append_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_line(path, b"one\n")
    append_line(path, b"two\n")
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        append_line(path, b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_an_output_that_the_user_names_may_be_a_pipe_a_device_or_a_link(tmp_path):
    pipe, link, read = tmp_path / "pipe", tmp_path / "link", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"page")
    reader.join(30)
    assert read == [b"page"]
    assert pipe.is_fifo()
    link.symlink_to("page")
    for content in (b"page", b"another"):
        write_output(link, content)
        assert link.is_symlink()
        assert (tmp_path / "page").read_bytes() == content
    if Path("/dev/full").exists():
        with pytest.raises(WriteError, match="No space"):
            write_output(Path("/dev/full"), b"page")
    with pytest.raises(WriteError):
        write_output(tmp_path, b"page")
