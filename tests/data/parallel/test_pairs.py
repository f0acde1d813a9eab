"""Encoded pairs: every line has its place, and filters count what they drop."""

import numpy as np
import pytest

from drill.data import DataError, Filters, ParallelText, Subwords
from drill.data import encode_pairs as encode
from drill.data.parallel.pairs import CHUNK
from drill.errors import ArgumentError

pytest.importorskip("tokenizers", reason="needs pip install tokenizers")

SUBWORDS = Subwords.train(["a b c d e f"], size=259)  # bytes: as many ids as characters
TEXT = ParallelText(
    ["abc", "", "abc", "abc", "abc", "a", "abc" * 4, "abc" * 2, "abc" * 7],
    ["def", "def", " \t", "def", "fed", "d", "def", "def", "def" * 7],
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
    assert pairs.describe_filtered() == "9 of 9 pairs kept; dropped: none"
    assert pairs.ids.dtype == np.uint16
    assert [each.tolist() for each in pairs.lengths] == [
        [len(line) for line in TEXT.source],
        [len(line) for line in TEXT.target],
    ]


def test_each_filter_counts_what_it_drops():
    pairs = encode(TEXT, SUBWORDS, FILTERS)
    assert lines(pairs) == [("abc", "def"), ("abc", "fed"), ("abcabc", "def")]
    expected = {"pairs": 9, "empty": 2, "duplicate": 1, "short": 1, "long": 1, "ratio": 1}
    assert pairs.filtered == expected
    assert pairs.describe_filtered() == (
        "3 of 9 pairs kept; dropped: 2 empty, 1 duplicate, 1 short, 1 long, 1 ratio"
    )


def test_duplicates_are_found_across_chunks_and_progress_is_reported():
    some = ParallelText([*map(str, range(CHUNK))], ["x"] * CHUNK)
    calls = []
    pairs = encode(
        some + some, SUBWORDS, Filters(ratio=None), progress=lambda *call: calls.append(call)
    )
    assert pairs.filtered["duplicate"] == len(pairs) == CHUNK
    assert SUBWORDS.decode(pairs.source(CHUNK - 1)) == str(CHUNK - 1)
    assert calls == [(CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK)]


def test_many_subwords_take_wider_ids(monkeypatch):
    monkeypatch.setattr(Subwords, "__len__", lambda self: 2**16 + 1)
    assert encode(TEXT, SUBWORDS).ids.dtype == np.int32


def test_filters_that_leave_nothing_are_named():
    with pytest.raises(DataError, match=r"no pair is left to train on .*2 empty, 7 short"):
        encode(TEXT, SUBWORDS, Filters(minimum=30, deduplicate=False))
    assert len(encode(ParallelText([], []), SUBWORDS, FILTERS)) == 0


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"minimum": -1}, "minimum"),
        ({"minimum": 5, "maximum": 4}, "maximum"),
        ({"ratio": float("nan")}, "ratio"),
    ],
)
def test_wrong_filters_are_named(wrong, key):
    with pytest.raises(ArgumentError, match=f"Filters: {key}"):
        Filters(**wrong)


def test_a_character_outside_utf8_is_named(tmp_path):
    odd = ParallelText(["a\ud800"], ["b"])
    for cache in (None, tmp_path):
        with pytest.raises(DataError, match="not UTF-8"):
            encode(odd, SUBWORDS, cache=cache)
