"""Batches of pairs: each pair once, within the limit, little padding, any order twice the same."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drill.data import BEGIN, END, IGNORE_INDEX, PAD, DataError, PairBatches, Pairs


def pairs_of(source, target):
    """Pairs of given lengths; every id says which sentence it is from."""
    lengths = np.array([*source, *target], dtype=np.int64)
    ids = np.repeat(np.arange(len(lengths)), lengths) + 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Pairs(ids.astype(np.int32), offsets, {"pairs": len(source)})


def realistic(count=20_000, seed=0):
    """Lengths as in news: a long tail, and targets about as long as their sources."""
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(2.6, 9.5, count), 1, 200)
    target = np.clip(source * random.normal(1.1, 0.22, count), 1, 200)
    return pairs_of(source.astype(int), target.astype(int))


def seen(batches):
    return np.concatenate([batch.indices for batch in batches])


def same(first, second):
    return all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one[:4], other[:4], strict=True)
    )


def test_a_batch_is_laid_out_as_said():
    batch = PairBatches(pairs_of([2, 0], [1, 3])).batch(np.array([1, 0]))
    assert batch.source.tolist() == [[END, PAD, PAD], [3, 3, END]]
    assert batch.target_in.tolist() == [[BEGIN, 6, 6, 6], [BEGIN, 5, PAD, PAD]]
    assert batch.target_out.tolist() == [[6, 6, 6, END], [5, END, IGNORE_INDEX, IGNORE_INDEX]]
    assert batch.indices.tolist() == [1, 0]
    assert batch.target_tokens == 6 == int((batch.target_out != IGNORE_INDEX).sum())
    assert {part.dtype for part in batch[:4]} == {torch.int64}


@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60),
    limit=st.integers(13, 60),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_every_pair_comes_once_and_within_the_limit(lengths, limit, seed, epoch):
    pairs = pairs_of(*zip(*lengths, strict=True))
    batches = PairBatches(pairs, limit, seed)
    found = list(batches.epoch(epoch))
    assert len(found) == len(batches)
    assert sorted(seen(found)) == list(range(len(pairs)))
    for batch in found:
        assert batch.source.numel() <= limit
        assert batch.target_out.numel() <= limit
        for row, index in enumerate(batch.indices.tolist()):
            source, target = pairs.source(index).tolist(), pairs.target(index).tolist()
            assert [x for x in batch.source[row].tolist() if x != PAD] == [*source, END]
            assert [x for x in batch.target_in[row].tolist() if x != PAD] == [BEGIN, *target]
            assert [x for x in batch.target_out[row].tolist() if x != IGNORE_INDEX] == [
                *target,
                END,
            ]


def padding(batches):
    """The share of positions that hold padding, of sources and of targets."""
    found = list(batches.epoch(1))
    sides = (
        [(b.source, b.source == PAD) for b in found],
        [(b.target_out, b.target_out == IGNORE_INDEX) for b in found],
    )
    return [sum(int(m.sum()) for _, m in side) / sum(t.numel() for t, _ in side) for side in sides]


def test_little_is_padding_and_batches_are_full():
    pairs = realistic()
    batches = PairBatches(pairs, 4096)
    source, target = padding(batches)
    assert source < 0.10
    assert target < 0.06
    longer = np.maximum(*pairs.lengths).sum() + len(pairs)
    assert len(batches) * 4096 < 1.06 * longer


def test_an_order_follows_from_seed_and_epoch_alone():
    pairs = realistic(2_000)
    one, two = PairBatches(pairs, 512, seed=5), PairBatches(pairs, 512, seed=5)
    list(one.epoch(0))  # what was read before makes no difference
    assert same(one.epoch(3), two.epoch(3))
    orders = {
        tuple(seen(PairBatches(pairs, 512, seed).epoch(epoch)))
        for seed, epoch in itertools.product(range(2), range(3))
    }
    assert len(orders) == 6


def test_another_epoch_puts_other_pairs_together():
    batches = PairBatches(pairs_of([5] * 400, [5] * 400), 60)
    first, second = (
        {frozenset(batch.indices.tolist()) for batch in batches.epoch(epoch)} for epoch in (0, 1)
    )
    assert len(first & second) == 0


def test_batches_of_all_lengths_are_mixed():
    widths = [batch.target_in.shape[1] for batch in PairBatches(realistic(), 4096).epoch(0)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3


@pytest.mark.parametrize("start", [0, 1, 7, 37, -1])
def test_a_resumed_epoch_equals_the_rest_of_the_straight_one(start):
    pairs = realistic(1_000)
    batches = PairBatches(pairs, 512, seed=2)
    start %= len(batches) + 1
    straight = list(batches.epoch(4))
    assert same(straight[start:], PairBatches(pairs, 512, seed=2).epoch(4, start))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_ranks_take_turns_in_the_order_of_one_process(size):
    """So a run may resume with another number of processes: only the last turn is split."""
    pairs = realistic(1_000)
    whole = PairBatches(pairs, 512, seed=2)
    shards = [PairBatches(pairs, 512, seed=2, rank=rank, size=size) for rank in range(size)]
    assert len({len(shard) for shard in shards}) == 1
    assert len(whole) <= len(shards[0]) * size < len(whole) + size
    found = [list(shard.epoch(1)) for shard in shards]
    assert {len(batches) for batches in found} == {len(shards[0])}
    assert sorted(np.concatenate([seen(batches) for batches in found])) == list(range(1_000))
    assert max(batch.source.numel() for batches in found for batch in batches) <= 512
    assert same(found[-1][3:], shards[-1].epoch(1, 3))
    mixed = [batch.indices.tolist() for turn in zip(*found, strict=True) for batch in turn]
    alone = [batch.indices.tolist() for batch in whole.epoch(1)]
    full = len(alone) // size * size
    assert mixed[:full] == alone[:full]
    assert sorted(itertools.chain(*mixed[full:])) == sorted(itertools.chain(*alone[full:]))


def test_processes_that_are_left_without_pairs_get_a_batch_that_asks_for_nothing():
    pairs = pairs_of([3] * 3, [3] * 3)
    assert len(PairBatches(pairs, max_tokens=4)) == 3
    shards = [PairBatches(pairs, max_tokens=4, rank=rank, size=2) for rank in range(2)]
    assert [len(shard) for shard in shards] == [2, 2]
    found = [batch for shard in shards for batch in shard.epoch(1)]
    assert sorted(seen(found)) == [0, 1, 2]
    (idle,) = [batch for batch in found if not len(batch.indices)]
    assert idle.target_tokens == 0
    assert (idle.target_out == IGNORE_INDEX).all()


def test_a_pair_over_the_limit_is_named():
    pairs = pairs_of([4, 9], [4, 4])
    assert len(PairBatches(pairs, 10)) == 2
    with pytest.raises(DataError, match=r"a pair has 10 tokens .*max_tokens \(9\)"):
        PairBatches(pairs, 9)


def test_lengths_are_padded_to_a_multiple_and_shapes_repeat():
    pairs = realistic()
    plain, few = PairBatches(pairs, 4096), PairBatches(pairs, 4096, multiple=8)
    batches = list(few.epoch(1))
    assert sorted(seen(batches)) == list(range(len(pairs)))
    for batch in batches:
        assert batch.source.shape[1] % 8 == batch.target_in.shape[1] % 8 == 0
        assert max(batch.source.numel(), batch.target_in.numel()) <= 4096

    def shapes(batches):
        return {(b.source.shape, b.target_in.shape) for b in batches}

    assert len(shapes(batches)) < 0.5 * len(shapes(plain.epoch(1)))
    assert padding(few)[1] < padding(plain)[1] + 0.15
    half = PairBatches(pairs, 4096, multiple=8, rank=1, size=2)
    assert len(half) * 2 >= len(few)
    assert all(b.source.shape[1] % 8 == 0 for b in half.epoch(1))
