"""Parallel text: lines stay in step, every format is known by its bytes, every fault has a line."""

import gzip
import lzma

import pytest

from drill.data import DataError, ParallelText

SOURCE = ["a cat", "", "two\u2028cats\x85", "lone\rreturn 🎉", "the end"]
TARGET = ["eine Katze", "nichts", "zwei Katzen", "Grüße", "das Ende"]


def write(path, lines, end="\n", pack=lambda raw: raw, mark=b""):
    path.write_bytes(pack(mark + (end.join(lines) + end).encode()))
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", ["text", "text.gz", "text.xz"])
def test_lines_come_as_they_are_whatever_the_file_is_called(tmp_path, name, pack, mark, end):
    source = write(tmp_path / f"en.{name}", SOURCE, end, pack, mark)
    text = ParallelText.from_files(source, write(tmp_path / "de", TARGET))
    assert list(text.source) == SOURCE
    assert list(text.target) == TARGET
    assert len(text) == 5


@pytest.mark.parametrize(
    "raw", [b"one\ntwo", gzip.compress(b"one\n", mtime=0) + gzip.compress(b"two\n", mtime=0)]
)
def test_a_last_line_without_an_end_and_archives_in_parts_are_read_whole(tmp_path, raw):
    (tmp_path / "en").write_bytes(raw)
    text = ParallelText.from_files(tmp_path / "en", write(tmp_path / "de", ["eins", "zwei"]))
    assert list(text.source) == ["one", "two"]


def test_unequal_counts_name_both_files_and_counts(tmp_path):
    source, target = write(tmp_path / "a.en", ["x"] * 1_200), write(tmp_path / "a.de", ["x"] * 3)
    with pytest.raises(DataError, match=r"a\.en has 1,200 lines but .*a\.de has 3; ") as caught:
        ParallelText.from_files(source, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (gzip.compress(b"one\n", mtime=0)[:12] + b"\xff\xff\xff\xff", "cannot be unpacked"),
        (gzip.compress(b"one\n\xff\n", mtime=0), "line 2 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(tmp_path, raw, fault):
    (tmp_path / "odd.en").write_bytes(raw)
    with pytest.raises(DataError, match=rf"odd\.en: {fault}") as caught:
        ParallelText.from_files(tmp_path / "odd.en", write(tmp_path / "de", ["x"]))
    assert "\n" not in str(caught.value)


def test_missing_and_empty_files_are_named(tmp_path):
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with pytest.raises(DataError, match=r"none: cannot be read"):
        ParallelText.from_files(tmp_path / "none", empty)
    with pytest.raises(DataError, match=r"empty and .*empty hold no line"):
        ParallelText.from_files(empty, empty)


def test_lines_that_are_no_pairs_are_refused():
    with pytest.raises(DataError, match="2 source lines and 1 target lines"):
        ParallelText(["a", "b"], ["c"])
    with pytest.raises(DataError, match="line 2 holds a line end"):
        ParallelText(["a", "b"], ["c", "d\ne"])
