"""How the N x V logits are cut into chunks, and which of them are kept for backward."""

from typing import NamedTuple

import torch
from torch import Tensor

MIN_BLOCK = 512
"""Tokens or labels that are summed at once at least."""
CHUNK_BYTES = {"cpu": 4 * 2**20, "cuda": 64 * 2**20}
ALIGN = {"cpu": 1, "cuda": 64}
"""Rows of logits are padded to this many elements: cuBLAS is fast only on aligned rows. A CPU's
oneDNN, on the other hand, reads the padding of bfloat16 rows, and NaN there spoils the product."""


class Chunk(NamedTuple):
    """Rows [top, bottom) x labels [left, right), ``stride`` apart in memory.

    ``kept`` is its place among the logits kept for backward.
    """

    top: int
    bottom: int
    left: int
    right: int
    stride: int
    kept: slice | None = None

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
    blocks: int  # of rows
    kept: int  # elements of the logits kept for backward


def plan(hidden: Tensor, labels: int, dtype: torch.dtype, memory: int, keep: bool) -> Plan:
    """Cut (N, V) into chunks; without ``keep`` (nothing to differentiate) none is kept.

    ``memory`` is shared out: at most half to the chunk at work, at most a quarter to the float32
    sums of half-precision gradients (blocks of rows bound them), the rest to chunks that are kept.
    """
    device = hidden.device.type
    rows, width = hidden.shape
    if keep and fits_whole(hidden, labels, dtype, memory):
        whole = Chunk(0, rows, 0, labels, aligned(labels, device))
        return Plan([whole._replace(kept=slice(0, whole.size))], 1, whole.size)
    at_work = min(CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]), max(1, memory // 2))
    block, columns, summed = max(1, rows), labels, 0
    if dtype.itemsize < 4:  # sums in float32
        most = memory // 4 // (4 * width)
        block = min(block, max(MIN_BLOCK, most))
        summed = 4 * width * block
        if block < rows:  # then those of labels too
            columns = min(columns, max(MIN_BLOCK, most))
            summed += 4 * width * columns
    room = max(0, memory - at_work - summed) // dtype.itemsize if keep else 0
    columns = min(columns, max(1, at_work // (block * dtype.itemsize)))
    columns = max(1, columns // 64 * 64 or columns)
    tiles = []
    used = 0
    for top in range(0, max(1, rows), block):  # no rows make a chunk too: zero gradients
        bottom = min(rows, top + block)
        for left in range(0, labels, columns):
            right = min(labels, left + columns)
            tile = Chunk(top, bottom, left, right, stride=aligned(right - left, device))
            if used + tile.size <= room:
                tile = tile._replace(kept=slice(used, used + tile.size))
                used += tile.size
            tiles.append(tile)
    return Plan(tiles, max(1, -(-rows // block)), used)


def fits_whole(hidden: Tensor, labels: int, dtype: torch.dtype, memory: int) -> bool:
    """Whether the logits are one chunk that is kept. A CPU prefers chunks that fit its caches."""
    device = hidden.device.type
    if device == "cpu":
        return False
    rows, width = hidden.shape
    padded = aligned(labels, device)
    # A padded or cast copy of the weight counts too.
    copied = 0 if padded == labels and dtype == hidden.dtype else padded * width
    return (rows * padded + copied) * dtype.itemsize <= memory


def aligned(width: int, device: str) -> int:
    align = ALIGN.get(device, ALIGN["cuda"])
    return -(-width // align) * align
