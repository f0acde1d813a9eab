"""What passes over tiles of rows share (Triton).

kept         which entries dropout keeps, drawn from a seed on the device: never stored, so
             backward draws them again
column_sums  sums over all rows, of what every program has summed for itself
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROUNDS = tl.constexpr(7)
"""Of Philox: the fewest that pass all tests of its authors (Salmon et al., SC 2011)."""
PARTS, COLUMNS = 64, 32  # of a tile of partial sums


@triton.jit
def kept(seed, row, first_column, dropout, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(ROWS, COLUMNS) of booleans, False with probability ``dropout``; columns a multiple of 4.

    One draw of Philox gives four numbers, for four neighbours.
    """
    quads = (width + 3) // 4
    four = row[:, None] * quads + first_column // 4 + tl.arange(0, COLUMNS // 4)[None, :]
    a, b, c, d = tl.rand4x(tl.load(seed), four, ROUNDS)
    # The last two dimensions are the bits of the place among four, the lower bit last.
    number = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, COLUMNS))
    return number >= dropout


@triton.jit(do_not_specialize=["count"])
def _column_sums(
    parts, total, count, WIDTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((PARTS, COLUMNS), tl.float32)
    for first in range(0, count, PARTS):
        row = first + tl.arange(0, PARTS)
        inside = (row < count)[:, None] & (column < WIDTH)[None, :]
        sums += tl.load(parts + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
    tl.store(total + column, tl.sum(sums, 0), mask=column < WIDTH)


def column_sums(parts: Tensor) -> Tensor:
    """(P, ...), float32, summed over P; without atomics, so that the bits are always the same."""
    total = parts.new_empty(parts.shape[1:])
    width = total.numel()
    grid = (-(-width // COLUMNS), 1)
    with torch.cuda.device_of(parts):  # where Triton launches
        _column_sums[grid](parts, total, parts.shape[0], width, PARTS, COLUMNS, num_warps=4)
    return total
