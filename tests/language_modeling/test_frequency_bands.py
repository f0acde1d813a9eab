"""Bands of word frequency, by hand and by the identities that must hold for any text."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drill.data import EOS, DataError, load_corpus
from drill.language_modeling.evaluation.frequency_bands import (
    EDGES,
    Band,
    compare_bands,
    frequency_bands,
)

# id:              0  1   2   3    4      5
COUNTS = np.array([0, 1, 49, 50, 4999, 5000])
TARGETS = np.array([1, 2, 2, 3, 5, 5, 5, 0])
LOSSES = np.array([8.0, 6.0, 4.0, 5.0, 1.0, 2.0, 0.0, 9.0])


def test_bands_by_hand():
    bands = frequency_bands(LOSSES, TARGETS, COUNTS)
    assert [band.label for band in bands] == [
        "never", "1 to 49", "50 to 99", "100 to 249", "250 to 499", "500 to 999", "1,000 to 2,499",
        "2,500 to 4,999", "5,000 and more",
    ]  # fmt: skip
    assert bands[0] == Band(0, 1, types=1, tokens=1, loss=9.0, type_loss=9.0)
    assert bands[1] == Band(1, 50, types=2, tokens=3, loss=18.0, type_loss=8.0 + 5.0)
    assert bands[2] == Band(50, 100, types=1, tokens=1, loss=5.0, type_loss=5.0)
    assert bands[7] == Band(2500, 5000, types=0, tokens=0, loss=0.0, type_loss=0.0)
    assert bands[8] == Band(5000, None, types=1, tokens=3, loss=3.0, type_loss=1.0)
    assert (bands[1].mean_loss, bands[1].mean_by_types) == (6.0, 6.5)
    assert (bands[7].mean_by_types, Band(0, 1, 1, 1, 9.0).mean_by_types) == (None, None)
    assert bands[1].perplexity == pytest.approx(math.exp(6.0))
    assert math.isnan(bands[7].mean_loss)
    assert math.isnan(bands[7].perplexity)


def test_the_lowest_band_begins_at_the_smallest_count():
    counts = np.array([0, 3, 12, 60, 2])
    bands = frequency_bands(LOSSES[:4], [0, 1, 2, 3], counts, edges=[1, 10, 50], exclude=[4])
    assert [band.label for band in bands] == ["never", "3 to 9", "10 to 49", "50 and more"]
    assert [band.tokens for band in bands] == [1, 1, 1, 1]
    higher = compare_bands(LOSSES[:2], LOSSES[:2], [0, 2], counts, edges=[1, 10], exclude=[1, 4])
    assert [(band.label, band.tokens) for band in higher] == [("never", 1), ("12 and more", 1)]


def test_changes_by_hand_differ_between_types_and_tokens():
    other = LOSSES + np.array([8.0, 1.0, -2.0, 5.0, 0.5, 0.5, 0.5, 0.0])
    never, rare, fifty, *_, often = compare_bands(LOSSES, other, TARGETS, COUNTS)
    # word 1: 8 -> 16, word 2: 10 -> 9
    assert rare.by_types == pytest.approx(100 * (8 / 8 + -1 / 10) / 2)
    assert rare.by_tokens == pytest.approx(100 * (25 - 18) / 18)
    assert (never.by_types, never.by_tokens) == (0.0, 0.0)
    assert (fifty.by_types, fifty.by_tokens) == (100.0, 100.0)
    assert often.by_types == often.by_tokens == pytest.approx(50.0)
    assert (rare.types, rare.tokens, rare.label) == (2, 3, "1 to 49")


def test_words_that_are_all_but_certain_are_counted_and_the_change_is_in_nats_too():
    """A ratio to next to nothing is a figure of chance: here one of 10 words makes +990%."""
    sure = np.array([0.0001] + [2.0] * 9)
    other = sure + np.array([0.0099] + [0.0] * 9)
    rare = compare_bands(sure, other, np.arange(10), np.full(10, 5))[1]
    assert rare.by_types == pytest.approx(990.0)  # the paper's definition stays as it is
    assert rare.nats == pytest.approx(0.0099 / 10)
    assert (rare.sure, rare.by_types_is_meaningful) == (1, False)
    many = np.repeat(2.0, 200)
    assert compare_bands(many, many, np.arange(200), np.full(200, 5))[1].by_types_is_meaningful
    many[:2] = 0.01  # one in a hundred, as `angeles` behind `los`
    found = compare_bands(many, many, np.arange(200), np.full(200, 5))[1]
    assert (found.sure, found.by_types_is_meaningful) == (2, True)


def test_changes_that_are_not_finite():
    changes = compare_bands(LOSSES, LOSSES, TARGETS, COUNTS)
    empty = changes[3]
    assert all(math.isnan(each) for each in (empty.by_types, empty.by_tokens, empty.nats))
    assert changes[1].by_types == 0.0
    zero, some = np.array([0.0, 1.0]), np.array([1.0, 1.0])
    targets, counts = np.array([0, 1]), np.array([1, 1])
    assert compare_bands(zero, some, targets, counts)[1].by_types == math.inf
    assert compare_bands(zero, zero, targets, counts)[1].by_types == 0.0
    assert compare_bands(zero, some, targets, counts)[1].by_tokens == pytest.approx(100.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(0, 300),
    words=st.integers(1, 60),
    edges=st.lists(st.integers(1, 9000), min_size=1, max_size=6, unique=True).map(sorted),
)
def test_bands_part_the_tokens_and_their_sums_add_up(seed, tokens, words, edges):
    generator = np.random.default_rng(seed)
    counts = (10 ** generator.uniform(-0.5, 4.5, words)).astype(np.int64)
    targets = generator.integers(words, size=tokens)
    a, b = generator.exponential(5.0, (2, tokens))
    edges = [1, *(edge for edge in edges if edge > 1)]
    bands = frequency_bands(a, targets, counts, edges=edges)
    assert sum(band.tokens for band in bands) == tokens
    assert sum(band.types for band in bands) == len(np.unique(targets))
    assert sum(band.loss for band in bands) == pytest.approx(a.sum())
    smallest = min(counts[counts > 0], default=1)
    assert [band.low for band in bands] == [0, smallest, *(e for e in edges if e > smallest)]
    for band in bands:
        inside = (counts[targets] >= band.low) & (counts[targets] < (band.high or np.inf))
        assert band.tokens == inside.sum()
        assert band.loss == pytest.approx(a[inside].sum())
    (whole,) = [each for each in compare_bands(a, b, targets, counts + 1, edges=[1]) if each.low]
    if tokens:
        assert whole.by_tokens == pytest.approx(100 * (b.sum() - a.sum()) / a.sum())


def test_tensors_and_small_types_are_understood_and_sums_are_wide():
    losses = torch.full((200_000,), 0.1)
    targets = np.zeros(200_000, dtype=np.uint16)
    bands = frequency_bands(losses, targets, np.array([7]))
    assert bands[1].loss == pytest.approx(20_000.0, rel=1e-7)  # float32 sums drift
    halves = frequency_bands(losses.bfloat16(), torch.from_numpy(targets).long(), torch.tensor([7]))
    assert halves[1].mean_loss == float(torch.tensor(0.1).bfloat16())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((LOSSES[1:], TARGETS, COUNTS), {}),
        *(((LOSSES, TARGETS, COUNTS), {"edges": edges}) for edges in ([], [0, 5], [1, 9, 5])),
    ],
)
def test_unusable_arguments(arguments, options):
    with pytest.raises(DataError):
        frequency_bands(*arguments, **options)
    with pytest.raises(DataError):
        compare_bands(LOSSES, LOSSES[1:], TARGETS, COUNTS)


@pytest.mark.data
def test_penn_treebank_has_the_published_types():
    if not Path(os.environ.get("DRILL_DATA", ""), "ptb").is_dir():
        pytest.skip("DRILL_DATA names no folder with ptb")
    corpus = load_corpus("ptb")
    vocabulary = corpus.vocabulary()
    targets = corpus.encode(vocabulary).test[1:]
    bands = frequency_bands(
        np.ones(len(targets)), targets, vocabulary.counts, exclude=[vocabulary.ids[EOS]]
    )
    assert [band.types for band in bands[1:]] == [4116, 861, 649, 243, 91, 50, 22, 16]
    assert bands[0].tokens == 0
    assert [band.high for band in bands] == [*EDGES, None]
