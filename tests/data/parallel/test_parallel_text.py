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


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"x\n" * 1_200, r"odd\.en has 1,200 lines but .*de has 1; "),
        (gzip.compress(b"one\n", mtime=0)[:12] + b"\xff" * 4, r"odd\.en: cannot be read"),
        (gzip.compress(b"one\n\xff\n", mtime=0), r"odd\.en: line 2 is not UTF-8"),
        (b"", r"odd\.en and .*odd\.en hold no line"),
        (None, r"odd\.en: cannot be read"),
    ],
)
def test_a_file_that_is_no_side_of_pairs_is_named_with_its_line(tmp_path, raw, fault):
    path, target = tmp_path / "odd.en", write(tmp_path / "de", ["x"])
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(DataError, match=fault) as caught:
        ParallelText.from_files(path, target if raw else path)
    assert "\n" not in str(caught.value)


def test_lines_that_are_no_pairs_are_refused():
    with pytest.raises(DataError, match="2 source lines and 1 target lines"):
        ParallelText(["a", "b"], ["c"])
