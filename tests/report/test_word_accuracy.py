"""Accuracy of words by frequency: by hand, and what must hold for any sentences."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.report.analysis.word_accuracy import AccuracyBand, word_accuracy, word_counts

COUNTS = {"the": 2000, "lamp": 7, "glows": 1}
WANTED = [["the", "lamp", "glows", "the", "end"], ["the", "lamp"]]
WRITTEN = [["the", "the", "the", "lamp", "lamp"], ["glows", "the", "end"]]


def test_bands_by_hand():
    bands = word_accuracy(WRITTEN, WANTED, COUNTS)
    assert [band.label for band in bands] == [
        "never", "1", "2 to 4", "5 to 9", "10 to 99", "100 to 999", "1,000 and more",
    ]  # fmt: skip
    never, once, few, some, *_, often = bands
    assert never == AccuracyBand(0, 1, types=1, wanted=1, written=1, matched=0)  # end, elsewhere
    assert once == AccuracyBand(1, 2, types=1, wanted=1, written=1, matched=0)  # glows, elsewhere
    assert some == AccuracyBand(5, 10, types=1, wanted=2, written=2, matched=1)  # lamp
    assert often == AccuracyBand(1000, None, types=1, wanted=3, written=4, matched=3)  # the
    assert (often.precision, often.recall) == (0.75, 1.0)
    assert often.f1 == pytest.approx(2 * 0.75 / 1.75)
    assert all(math.isnan(value) for value in (few.precision, few.recall, few.f1))


def test_counts_are_of_words_as_they_are_scored():
    assert word_counts(["Ja, ja.", "Ja!"]) == {"Ja": 2, ",": 1, "ja": 1, ".": 1, "!": 1}


sentences = st.lists(st.tuples(*[st.lists(st.integers(0, 5), max_size=6)] * 2), max_size=5)


@given(sentences, st.dictionaries(st.integers(0, 5), st.integers(0, 20)))
def test_bands_add_up_and_sides_can_be_swapped(pairs, counts):
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    bands, swapped = word_accuracy(ours, theirs, counts), word_accuracy(theirs, ours, counts)
    assert sum(band.written for band in bands) == sum(map(len, ours))
    assert sum(band.wanted for band in bands) == sum(map(len, theirs))
    shared = sum((Counter(a) & Counter(b)).total() for a, b in pairs)
    assert sum(band.matched for band in bands) == shared
    for band, other in zip(bands, swapped, strict=True):
        assert (band.wanted, band.written) == (other.written, other.wanted)
        assert band.f1 == other.f1 or math.isnan(band.f1)


@pytest.mark.parametrize(("wanted", "edges"), [(WANTED[:1], [1, 2]), (WANTED, [2, 1])])
def test_unusable_arguments(wanted, edges):
    with pytest.raises(ValueError, match=r"shorter|edges"):
        word_accuracy(WRITTEN, wanted, COUNTS, edges=edges)
