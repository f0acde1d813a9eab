"""How the N x V logits are cut into chunks, and which of them are saved for backward."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from drill.kernels.loss.head import Head
from drill.kernels.runtime.padding import aligned

ROW_BYTES = 40
"""Bytes of a row besides its logits: targets, peaks, sums, losses and their gradients."""

MIN_BLOCK = 512
"""Fewest tokens of a block of rows."""
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
"""Logits of a chunk: enough for fast products; on a CPU few enough for its caches."""


class Chunk(NamedTuple):
    """Rows [top, bottom) x labels [left, right), ``stride`` apart in memory.

    ``saved`` is its position among the logits saved for backward.
    """

    top: int
    bottom: int
    left: int
    right: int
    stride: int
    saved: slice | None = None

    @property
    def rows(self) -> slice:
        return slice(self.top, self.bottom)

    @property
    def labels(self) -> slice:
        return slice(self.left, self.right)

    @property
    def shape(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left

    @property
    def size(self) -> int:
        return (self.bottom - self.top) * self.stride

    def view(self, flat: Tensor) -> Tensor:
        """(R, C) logits in a flat buffer."""
        return flat[: self.size].view(-1, self.stride)[:, : self.right - self.left]


class Plan(NamedTuple):
    chunks: list[Chunk]
    saved: int  # elements of the logits saved for backward
    by_label: list[Chunk] | None = None  # for the gradient of labels, where rows are in blocks


def plan(head: Head, keep: bool) -> Plan:
    """Cut (N, V) into chunks; without ``keep`` (nothing to differentiate) none is saved.

    ``memory`` is shared out: about half to the chunk at work, a quarter to float32 sums and copies
    of hidden (blocks of rows bound them), the rest to saved chunks.
    """
    hidden, labels = head.hidden, head.labels
    _, _, dtype, engine, memory, sigsoftmax = head.settings
    device = hidden.device.type
    rows, width = hidden.shape
    # Plain PyTorch makes float32 copies of a chunk as it works.
    each = dtype.itemsize + (0 if engine == "triton" else 12 + 12 * sigsoftmax)
    most = CHUNK_ELEMENTS.get(device, CHUNK_ELEMENTS["cuda"])
    most = max(1, min(most, memory // 2 // each))
    # Per element of hidden: float32 sums of its gradient; of hidden and weight: copies in the dtype
    # of the products, and on a CPU in float32 for products that are summed in it.
    sums = 4 if hidden.dtype.itemsize < 4 else 0
    casts = dtype.itemsize if dtype != hidden.dtype else 0
    casts += 4 if device == "cpu" and dtype.itemsize < 4 else 0
    block, columns = max(1, rows), labels
    if sums + casts:
        block = min(block, max(MIN_BLOCK, memory // 4 // ((sums + casts) * width)))
    if casts:
        columns = min(columns, max(64, memory // 8 // (casts * width)))
    columns = _columns(columns, most // block)
    summed = sums * width * block
    at_work = each * block * aligned(columns, device) + casts * width * (block + columns)
    vectors = ROW_BYTES * rows
    room = max(0, memory - at_work - summed - vectors) // dtype.itemsize
    room = min(room, rows * aligned(labels, device))
    room = room if keep else 0
    tiles = []
    used = 0
    for tile in _grid(rows, labels, block, columns, device):
        if used + tile.size <= room:
            tile = tile._replace(saved=slice(used, used + tile.size))
            used += tile.size
        tiles.append(tile)
    if block >= rows or not keep:
        return Plan(tiles, used)
    by_label = _grid(rows, labels, rows, _columns(labels, most // rows), device)
    return Plan(tiles, used, list(by_label))


def max_saved_elements(head: Head, keep: bool) -> int:
    """An upper bound of the saved elements, as a formula that ``torch.compile`` can trace."""
    if not keep:
        return 0
    everything = head.hidden.shape[0] * aligned(head.labels, head.hidden.device.type)
    return torch.sym_min(everything, head.settings.memory // head.settings.dtype.itemsize)


def _columns(labels: int, most: int) -> int:
    return max(1, min(labels, most // 64 * 64 or most))


def _grid(rows: int, labels: int, block: int, columns: int, device: str) -> Iterator[Chunk]:
    for top in range(0, max(1, rows), block):  # without rows one chunk, for zero gradients
        for left in range(0, labels, columns):
            bottom, right = min(rows, top + block), min(labels, left + columns)
            yield Chunk(top, bottom, left, right, stride=aligned(right - left, device))


def fits_in_one_chunk(head: Head) -> bool:
    """Whether all logits fit into memory as one saved chunk, which an engine changes in place."""
    _, _, dtype, engine, memory, _ = head.settings
    if engine != "triton":
        return False
    rows, width = head.hidden.shape
    padded = aligned(head.labels, head.hidden.device.type)
    cast = dtype != head.hidden.dtype
    copied = padded * width if cast or padded != head.labels else 0  # of the weight
    copied += rows * width if cast else 0  # of hidden
    return (rows * padded + copied) * dtype.itemsize + ROW_BYTES * rows <= memory
