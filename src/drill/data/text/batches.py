"""From a stream of ids to the segments a recurrent model reads.

    ids (N,) -> (rows, batch) -> segments (start, length) -> inputs, targets (length, batch)

The targets of row r are row r + 1, so the first row is never predicted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drill.errors import DataError, require

FULL_LENGTH_CHANCE = 0.95  # else half of bptt
LENGTH_DEVIATION = 5.0
SHORTEST = 5


class Segment(NamedTuple):
    """Rows ``start`` to ``start + length`` are inputs; their targets lie one row further down.

    ``sampled_length`` is what was drawn before the end of the text cut it: the learning rate of a
    step follows that one.
    """

    start: int
    length: int
    sampled_length: int


def batchify(ids: NDArray[Any], batch_size: int, name: str = "batch_size") -> Tensor:
    """(N,) -> (rows, batch_size), int64: the text as parallel streams, each read downwards.

    Args:
        ids: (N,), of a text.
        batch_size: number of streams.
        name: of ``batch_size`` in errors.

    Returns:
        (rows, batch_size) with rows = N // batch_size; tokens left over at the end are dropped.
    """
    require(batch_size >= 1, "batchify", name, "at least 1", batch_size, DataError)
    rows = len(ids) // batch_size
    if rows < 2:
        raise DataError(
            f"{len(ids):,} tokens at batch size {batch_size:,} give {rows} rows, and each row "
            f"needs a next one as target; set a smaller {name} or use a longer text"
        )
    # a copy: a memory map stays untouched
    stream = ids[: rows * batch_size].astype(np.int64, casting="same_kind")
    return torch.from_numpy(stream).view(batch_size, rows).t().contiguous()


def rotations(seed: int, epoch: int, rows: int, batch_size: int) -> Tensor:
    """(1, batch_size), int64: how far each stream is rotated in an epoch, 0 to rows - 1.

    They depend on seed and epoch alone, so a run that is resumed finds them again.
    """
    offsets = np.random.default_rng([seed, epoch]).integers(rows, size=(1, batch_size))
    return torch.from_numpy(offsets)


def rotated(data: Tensor, offsets: Tensor) -> Tensor:
    """Streams of ``data`` (rows, batch) that begin ``offsets`` (1, batch) rows further down.

    What stands before that follows the last row.
    """
    rows = data.shape[0]
    index = torch.arange(rows, device=data.device)[:, None] + offsets.to(data.device)
    return data.gather(0, index % rows)


def inputs_and_targets(data: Tensor, segment: Segment) -> tuple[Tensor, Tensor]:
    """The tensors of a segment, as views.

    Args:
        data: (rows, batch), from ``batchify``.
        segment: which rows.

    Returns:
        Inputs and targets, (length, batch) each, the targets one row further down.
    """
    start, stop = segment.start, segment.start + segment.length
    return data[start:stop], data[start + 1 : stop + 1]


class SequenceLengths:
    """An endless iterator: max(5, int(Normal(base, 5))), base = bptt or, in 5 of 100, bptt / 2.

    Each length takes one uniform and one normal number from numpy's legacy generator, so that a
    seed gives the lengths of published runs. One object serves all epochs of a run.

    Args:
        seed: of the random numbers.
        bptt: the usual length.
        cap: the longest length; none by default.
    """

    def __init__(self, seed: int, bptt: int, cap: int | None = None) -> None:
        self.bptt = bptt
        self.cap = cap
        self._random = np.random.RandomState(seed)

    def __iter__(self) -> "SequenceLengths":
        return self

    def __next__(self) -> int:
        full = self._random.random_sample() < FULL_LENGTH_CHANCE
        base = self.bptt if full else self.bptt / 2
        length = max(SHORTEST, int(self._random.normal(base, LENGTH_DEVIATION)))
        return length if self.cap is None else min(length, self.cap)

    def state(self) -> dict[str, Any]:
        """What ``from_state`` needs to continue with the next length; exact in JSON."""
        generator_state: Any = self._random.get_state()
        _, key, position, has_gauss, gauss = generator_state
        state = {"key": key.tolist(), "position": position, "has_gauss": has_gauss, "gauss": gauss}
        return {"bptt": self.bptt, "cap": self.cap, **state}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SequenceLengths":
        """The stream as it was."""
        lengths = cls(0, state["bptt"], state["cap"])
        numbers = (state[name] for name in ("key", "position", "has_gauss", "gauss"))
        lengths._random.set_state(("MT19937", *numbers))
        return lengths


def training_segments(rows: int, lengths: Iterator[int], start: int = 0) -> Iterator[Segment]:
    """One epoch in segments; a length is drawn when it is needed.

    The last segment has at least 2 rows: fewer would leave no difference in time to regularise.

    Args:
        rows: of the text, from ``batchify``.
        lengths: an endless iterator, such as ``SequenceLengths``.
        start: the first row. To resume inside an epoch, pass it with the state of ``lengths``.

    Returns:
        An iterator over segments.
    """
    if rows < 3:
        raise DataError(
            f"training_segments: {rows} rows hold no segment of 2 rows and a target; take a "
            "smaller batch or a longer text"
        )
    while start < rows - 2:
        sampled = next(lengths)
        length = min(sampled, rows - 1 - start)
        yield Segment(start, length, sampled)
        start += length


def evaluation_segments(rows: int, bptt: int = 70) -> Iterator[Segment]:
    """Segments of ``bptt`` rows and a shorter last one: every row but the first is a target.

    Args:
        rows: of the text, from ``batchify``.
        bptt: length of a segment.

    Returns:
        An iterator over segments.
    """
    require(bptt >= 1, "evaluation_segments", "bptt", "at least 1", bptt, DataError)
    return (Segment(start, min(bptt, rows - 1 - start), bptt) for start in range(0, rows - 1, bptt))
