"""Batches: the lengths of published runs, and which rows a segment holds."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drill.data import (
    DataError,
    Segment,
    SequenceLengths,
    batchify,
    evaluation_segments,
    inputs_and_targets,
    training_segments,
)
from drill.data.text.batches import rotated, rotations

PTB, WIKITEXT_2 = 929_589, 2_088_628  # training tokens


@pytest.mark.parametrize(
    ("seed", "cap", "first"),
    [
        (141, None, [67, 70, 73, 71, 76, 72, 76, 62, 74, 73, 70, 32]),
        (28, None, [64, 70, 63, 70, 33, 72, 60, 70, 76, 36, 70, 68]),
        (1882, None, [72, 72, 68, 65, 61, 78, 73, 72, 72, 37, 69, 78]),
        (331, 70 + 10, [71, 66, 73, 70, 65, 75, 72, 59, 26, 71, 41, 37]),
    ],
)
def test_the_first_lengths_of_published_runs(seed, cap, first):
    assert list(islice(SequenceLengths(seed, 70, cap), 12)) == first


@pytest.mark.parametrize(
    ("tokens", "batch", "seed", "cap", "steps"),
    [
        (PTB, 20, 141, None, 686),
        (PTB, 20, 28, None, 687),
        (PTB, 12, 28, 70 + 40, 1143),
        (WIKITEXT_2, 80, 1882, None, 386),
    ],
)
def test_the_steps_in_the_first_epoch_of_published_runs(tokens, batch, seed, cap, steps):
    segments = list(training_segments(tokens // batch, SequenceLengths(seed, 70, cap)))
    assert len(segments) == steps


def test_lengths_stay_between_five_and_the_cap():
    lengths = list(islice(SequenceLengths(3, 8, cap=10), 500))
    assert min(lengths) == 5
    assert max(lengths) == 10
    assert max(islice(SequenceLengths(3, 8), 500)) > 10


@pytest.mark.parametrize("drawn", [0, 1, 7, 400])
def test_a_stream_of_lengths_goes_on_from_its_state(drawn):
    lengths = SequenceLengths(28, 70, cap=80)
    list(islice(lengths, drawn))
    state = json.loads(json.dumps(lengths.state()))
    assert list(islice(SequenceLengths.from_state(state), 300)) == list(islice(lengths, 300))


def test_an_epoch_goes_on_from_its_middle():
    whole = list(training_segments(900, SequenceLengths(5, 20)))
    lengths = SequenceLengths(5, 20)
    begun = list(islice(training_segments(900, lengths), 10))
    lengths = SequenceLengths.from_state(lengths.state())
    rest = training_segments(900, lengths, start=begun[-1].start + begun[-1].length)
    assert begun + list(rest) == whole


def test_streams_are_runs_of_the_text_and_the_tail_is_dropped():
    ids = np.arange(11, dtype=np.uint16)
    ids.flags.writeable = False  # as a memory map is
    data = batchify(ids, 3)
    assert torch.equal(data, torch.tensor([[0, 3, 6], [1, 4, 7], [2, 5, 8]]))
    assert data.dtype == torch.int64
    assert data.is_contiguous()
    data.zero_()
    assert ids.tolist() == list(range(11))


def test_the_targets_are_the_next_row():
    data = batchify(np.arange(10), 2)
    inputs, targets = inputs_and_targets(data, Segment(1, 3, 3))
    assert inputs.tolist() == [[1, 6], [2, 7], [3, 8]]
    assert targets.tolist() == [[2, 7], [3, 8], [4, 9]]


@given(rows=st.integers(3, 400), seed=st.integers(0, 2**32 - 1), bptt=st.integers(1, 90))
def test_training_segments_join_and_have_two_rows(rows, seed, bptt):
    segments = list(training_segments(rows, SequenceLengths(seed, bptt)))
    end = 0
    for start, length, sampled in segments:
        assert start == end
        assert 2 <= length <= sampled
        end = start + length
    assert rows - 2 <= end <= rows - 1  # a single row at the end is left out
    assert all(each.length == each.sampled_length for each in segments[:-1])


@given(rows=st.integers(2, 400), bptt=st.integers(1, 90))
def test_evaluation_predicts_every_row_but_the_first_once(rows, bptt):
    targets = [
        start + 1 + step
        for start, length, _ in evaluation_segments(rows, bptt)
        for step in range(length)
    ]
    assert targets == list(range(1, rows))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batchify(np.arange(5), 0), "at least 1"),
        (lambda: batchify(np.arange(5), 3), "5 tokens at batch size 3 give 1 rows"),
        (lambda: list(training_segments(2, SequenceLengths(1, 70))), "2 rows"),
        (lambda: evaluation_segments(9, 0), "bptt"),
    ],
)
def test_wrong_input_is_named(call, words):
    with pytest.raises(DataError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_streams_are_rotated_each_by_its_own_offset():
    data = torch.tensor([[0, 10, 20], [1, 11, 21], [2, 12, 22], [3, 13, 23]])
    found = rotated(data, torch.tensor([[0, 1, 3]]))
    assert found.tolist() == [[0, 11, 23], [1, 12, 20], [2, 13, 21], [3, 10, 22]]


def test_offsets_follow_from_the_seed_and_the_epoch():
    first = rotations(28, 1, 1000, 20)
    assert first.shape == (1, 20)
    assert first.dtype == torch.int64
    assert torch.equal(first, rotations(28, 1, 1000, 20))
    assert not torch.equal(first, rotations(28, 2, 1000, 20))
    assert not torch.equal(first, rotations(29, 1, 1000, 20))
    many = rotations(0, 0, 4, 1000)
    assert many.unique().tolist() == [0, 1, 2, 3]
