"""Encoded pairs: filters count what they drop, entries are found by content and proven."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from drill.data import KEEP_ALL, DataError, FilterReport, Filters, ParallelText, Subwords
from drill.data import encode_pairs as encode
from drill.data.parallel.pairs import CHUNK

pytest.importorskip("tokenizers", reason="needs pip install tokenizers")

SUBWORDS = Subwords.train(["a b c d e f"], size=259)  # bytes: as many ids as characters
TEXT = ParallelText.from_pairs(
    [
        ("abc", "def"),
        ("", "def"),
        ("abc", " \t"),
        ("abc", "def"),
        ("abc", "fed"),
        ("a", "d"),
        ("abc" * 4, "def"),
        ("abc" * 2, "def"),
        ("abc" * 7, "def" * 7),
    ]
)
FILTERS = Filters(minimum=2, maximum=20, ratio=2.0)


def lines(pairs):
    return [
        (SUBWORDS.decode(pairs.source(i)), SUBWORDS.decode(pairs.target(i)))
        for i in range(len(pairs))
    ]


def test_without_filters_every_line_has_its_place():
    pairs = encode(TEXT, SUBWORDS)
    assert lines(pairs) == list(zip(TEXT.source, TEXT.target, strict=True))
    assert pairs.report == FilterReport(9)
    assert pairs.ids.dtype == np.uint16
    assert [each.tolist() for each in pairs.lengths] == [
        [len(line) for line in TEXT.source],
        [len(line) for line in TEXT.target],
    ]


def test_each_filter_counts_what_it_drops():
    pairs = encode(TEXT, SUBWORDS, FILTERS)
    assert lines(pairs) == [("abc", "def"), ("abc", "fed"), ("abcabc", "def")]
    expected = FilterReport(9, empty=2, duplicate=1, short=1, long=1, ratio=1)
    assert pairs.report == expected
    assert expected.kept == len(pairs) == 3
    assert str(expected) == (
        "3 of 9 pairs kept; dropped: 2 empty, 1 duplicate, 1 short, 1 long, 1 ratio"
    )


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (KEEP_ALL, 9),
        (replace(KEEP_ALL, minimum=1), 7),
        (replace(KEEP_ALL, maximum=12), 8),
        (replace(KEEP_ALL, maximum=11), 7),
        (replace(KEEP_ALL, ratio=4.0), 9),
        (replace(KEEP_ALL, ratio=3.9), 8),
        (replace(KEEP_ALL, deduplicate=True), 8),
    ],
)
def test_one_filter_alone(filters, kept):
    assert len(encode(TEXT, SUBWORDS, filters)) == kept


def test_duplicates_are_found_across_chunks_and_progress_is_told():
    some = ParallelText.from_pairs([(str(i), "x") for i in range(CHUNK)])
    calls = []
    pairs = encode(
        some + some, SUBWORDS, Filters(ratio=None), progress=lambda *call: calls.append(call)
    )
    assert pairs.report == FilterReport(2 * CHUNK, duplicate=CHUNK)
    assert SUBWORDS.decode(pairs.source(CHUNK - 1)) == str(CHUNK - 1)
    assert calls == [(CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK)]


def test_many_subwords_take_wider_ids(monkeypatch):
    monkeypatch.setattr(Subwords, "__len__", lambda self: 2**16 + 1)
    assert encode(TEXT, SUBWORDS).ids.dtype == np.int32


def test_wrong_filters_and_empty_results_are_named():
    with pytest.raises(DataError, match=r"no pair is left to train on .*2 empty, 7 short"):
        encode(TEXT, SUBWORDS, Filters(minimum=30, deduplicate=False))
    with pytest.raises(DataError, match="minimum is at least 0, not -1"):
        Filters(minimum=-1)
    with pytest.raises(DataError, match=r"maximum is at least 1 and minimum \(5\), not 4"):
        Filters(minimum=5, maximum=4)
    with pytest.raises(DataError, match="ratio is at least 1, not nan"):
        Filters(ratio=float("nan"))


@pytest.fixture
def counted(monkeypatch):
    """How often lines were really encoded; two calls per chunk."""
    calls = []
    encode_lines = Subwords.encode_lines

    def counting(self, some):
        calls.append(1)
        return encode_lines(self, some)

    monkeypatch.setattr(Subwords, "encode_lines", counting)
    return calls


def test_a_second_call_reads_the_map(tmp_path, counted):
    for _ in range(2):
        pairs = encode(TEXT, SUBWORDS, FILTERS, tmp_path)
        assert isinstance(pairs.ids, np.memmap)
        assert not pairs.ids.flags.writeable
        assert pairs.report == FilterReport(9, empty=2, duplicate=1, short=1, long=1, ratio=1)
    assert lines(pairs) == lines(encode(TEXT, SUBWORDS, FILTERS))
    assert len(counted) == 4  # of which two without a folder
    assert len(list(tmp_path.iterdir())) == 3


def test_another_text_subwords_or_filters_is_another_entry(tmp_path):
    moved = ParallelText(["ab", "c"], ["d", "e"])
    variants = [
        (TEXT, SUBWORDS, FILTERS),
        (ParallelText(TEXT.target, TEXT.source), SUBWORDS, FILTERS),
        (TEXT, Subwords.train(["abc abc"], size=259, single_digits=True), FILTERS),
        (TEXT, SUBWORDS, replace(FILTERS, ratio=3.0)),
        (TEXT, SUBWORDS, KEEP_ALL),
        (moved, SUBWORDS, KEEP_ALL),
        (ParallelText(["a", "bc"], ["d", "e"]), SUBWORDS, KEEP_ALL),
    ]
    for count, variant in enumerate(variants, start=1):
        encode(*variant, cache=tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == count


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def spoil(path):
    path.write_text("[3]")


def lose(path):
    path.unlink()


@pytest.mark.parametrize("kind", ["*.ids.npy", "*.offsets.npy", "*.json"])
@pytest.mark.parametrize("damage", [cut, flip, spoil, lose])
def test_a_damaged_entry_is_made_again(tmp_path, counted, kind, damage):
    whole = lines(encode(TEXT, SUBWORDS, FILTERS, tmp_path))
    (path,) = tmp_path.glob(kind)
    damage(path)
    for _ in range(2):
        assert lines(encode(TEXT, SUBWORDS, FILTERS, tmp_path)) == whole
    assert len(counted) == 4  # twice made, then from disk again


def test_a_note_without_its_report_is_made_again(tmp_path):
    encode(TEXT, SUBWORDS, FILTERS, tmp_path)
    (note,) = tmp_path.glob("*.json")
    held = json.loads(note.read_text())
    note.write_text(json.dumps({**held, "report": {"pairs": 9, "odd": 1}}))
    assert encode(TEXT, SUBWORDS, FILTERS, tmp_path).report.empty == 2


def test_writers_at_the_same_time_agree(tmp_path):
    whole = lines(encode(TEXT, SUBWORDS, FILTERS))
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: lines(encode(TEXT, SUBWORDS, FILTERS, tmp_path)), range(32)))
    assert runs == [whole] * 32
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    assert len(encode(TEXT, SUBWORDS, FILTERS, blocked)) == 3


def test_lines_without_words_need_no_map(tmp_path):
    nothing = ParallelText(["", ""], ["", ""])
    pairs = encode(nothing, SUBWORDS, cache=tmp_path)
    assert len(pairs) == 2
    assert pairs.source(1).tolist() == []
    assert len(encode(ParallelText([], []), SUBWORDS)) == 0


def test_a_character_outside_utf8_is_named(tmp_path):
    odd = ParallelText(["a\ud800"], ["b"])
    for cache in (None, tmp_path):
        with pytest.raises(DataError, match="is no character of UTF-8"):
            encode(odd, SUBWORDS, cache=cache)
