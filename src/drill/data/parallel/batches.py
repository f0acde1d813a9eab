"""Batches of pairs with about the same number of tokens each, whatever the sentences' lengths.

Pairs are sorted by length and cut where the next pair would take a padded side over the limit. An
epoch shuffles pairs of equal lengths, and the batches. Both follow from (seed, epoch) alone, so a
run resumes from (epoch, index), also with another number of processes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drill.data.parallel.pairs import Pairs
from drill.data.subwords import BEGIN, END, PAD
from drill.errors import DataError
from drill.kernels.loss.checks import IGNORE_INDEX


class PairBatch(NamedTuple):
    """B padded pairs, int64. Row b is pair ``indices[b]``.

    source      (B, S): x_1 ... x_n <end> <pad>
    target_in   (B, T): <begin> y_1 ... y_m <pad>
    target_out  (B, T): y_1 ... y_m <end> IGNORE_INDEX

    The source ends in ``<end>`` so that an empty line, too, is something to read.
    """

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    indices: Tensor  # (B,)
    target_tokens: int  # labels in target_out: the targets and one <end> per pair


class PairBatches:
    """P pairs in batches of B pairs, where B x S and B x T stay within ``max_tokens``.

    The number of batches is the same in every epoch.

        batches = PairBatches(pairs, max_tokens=4096, seed=1)
        for batch in batches.epoch(3, start=120): ...  # from batch 120 of epoch 3 on

    With several processes each has the same number of batches, and no batch is in two. Where the
    last turn has too few for all, some processes get a batch without targets.

    Args:
        pairs: from ``encode_pairs``.
        max_tokens: of a batch on either side, with padding.
        seed: of the order of an epoch.
        multiple: S and T are multiples of it: more padding, but fewer shapes for CUDA graphs.
        rank: of this process, which has the batches i of an epoch with i modulo ``size`` =
            ``rank``.
        size: number of processes.
        long_alone: a pair longer than ``max_tokens`` is a batch of its own; else it is an error.
    """

    def __init__(
        self,
        pairs: Pairs,
        max_tokens: int = 4096,
        seed: int = 0,
        *,
        multiple: int = 1,
        rank: int = 0,
        size: int = 1,
        long_alone: bool = False,
    ) -> None:
        self.pairs = pairs
        self.seed, self.multiple = seed, multiple
        self.rank, self.size = rank, size
        sources, targets = pairs.lengths
        self._source, self._target = sources + 1, targets + 1  # with <end>; with <begin> or <end>
        longer = _rounded_up(np.maximum(self._source, self._target), multiple)
        if longer.max() > max_tokens and not long_alone:
            raise DataError(
                f"a pair has {longer.max():,} tokens on one side, more than max_tokens "
                f"({max_tokens:,}) allows in a batch; raise training.max_tokens, or drop such "
                "pairs with a smaller filters.maximum"
            )
        order = self._by_length(np.arange(len(pairs)))
        self._bounds = _bounds(longer[order], max_tokens)

    def __len__(self) -> int:
        """Batches an epoch, for this process."""
        return -(-(len(self._bounds) - 1) // self.size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[PairBatch]:
        """The batches ``start``, ``start + 1``, ... of an epoch, whose number decides the order."""
        # The legacy generator: its numbers stay the same in every version of numpy.
        seeds = np.random.SeedSequence([self.seed, epoch])
        random = np.random.RandomState(np.random.MT19937(seeds))
        order = self._by_length(random.permutation(len(self.pairs)))
        shuffled = random.permutation(len(self._bounds) - 1)
        batches = [order[self._bounds[i] : self._bounds[i + 1]] for i in shuffled]
        batches += [order[:0]] * (-len(batches) % self.size)
        for indices in batches[self.rank :: self.size][start:]:
            yield self.batch(indices) if len(indices) else self._nothing()

    def _nothing(self) -> PairBatch:
        """A pair whose targets are all left out: its loss and its gradients are 0."""
        batch = self.batch(np.zeros(1, dtype=np.int64))
        return batch._replace(
            target_out=torch.full_like(batch.target_out, IGNORE_INDEX),
            indices=batch.indices[:0],
            target_tokens=0,
        )

    def _by_length(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sort by the longer side, as it is padded, then by the difference of the two.

        The second key rises under one length and falls under the next, so that a batch over two
        lengths holds no pairs of both ends.
        """
        source, target = self._source[order], self._target[order]
        longer = _rounded_up(np.maximum(source, target), self.multiple)
        rises = longer // self.multiple % 2 == 0
        excess = np.where(rises, source - target, target - source)
        return order[np.lexsort((excess, longer))]

    def batch(self, indices: NDArray[np.int64]) -> PairBatch:
        """The pairs ``indices`` (B,) as one batch, in this order."""
        count = len(self.pairs)
        source = self._padded(indices, self._source[indices], PAD)
        target_out = self._padded(count + indices, self._target[indices], IGNORE_INDEX)
        target_in = np.full_like(target_out, PAD)
        target_in[:, 0] = BEGIN
        previous = target_out[:, :-1]
        target_in[:, 1:] = np.where((previous == IGNORE_INDEX) | (previous == END), PAD, previous)
        return PairBatch(
            torch.from_numpy(source),
            torch.from_numpy(target_in),
            torch.from_numpy(target_out),
            torch.from_numpy(indices.copy()),
            int(self._target[indices].sum()),
        )

    def _padded(
        self, sentences: NDArray[np.int64], lengths: NDArray[np.int64], fill: int
    ) -> NDArray[np.int64]:
        """Sentences and ``<end>``, (B, longest); ``lengths`` (B,) count that ``<end>``."""
        columns = np.arange(_rounded_up(lengths.max(), self.multiple))
        rows: NDArray[np.int64] = np.full((len(sentences), len(columns)), fill, dtype=np.int64)
        within = columns < lengths[:, None] - 1
        positions = self.pairs.offsets[sentences][:, None] + columns
        rows[within] = self.pairs.ids[positions[within]]
        rows[np.arange(len(sentences)), lengths - 1] = END
        return rows


def _rounded_up(lengths: Any, multiple: int) -> Any:
    return -(-lengths // multiple) * multiple  # of integers or arrays


def _bounds(longer: NDArray[np.int64], max_tokens: int) -> NDArray[np.int64]:
    """Where batches begin, and the end (batches + 1,); ``longer`` (P,) rises.

    Each batch is as large as the limit allows, and a pair beyond it stands alone.
    """
    bounds = [0]
    for index, length in enumerate(longer.tolist()):
        if index > bounds[-1] and length * (index + 1 - bounds[-1]) > max_tokens:
            bounds.append(index)
    return np.array([*bounds, len(longer)], dtype=np.int64)
