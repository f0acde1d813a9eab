"""``residual_norm`` as Triton kernels. Imported on first use.

Rows are taken a tile at a time, a row whole: its mean and variance need no second pass. All
arithmetic is in float32.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.transformer.row_tiles import column_sums, kept

ENTRIES = 2048  # of a tile
MOST_ROWS = 16  # of a tile, where rows are short
TILES = 4  # of rows that a program of the backward pass sums before it writes to ``parts``
ENTRIES_OF_A_WARP = 1024  # more warps wait longer for one another at every sum of a row


class Normed(NamedTuple):
    """What ``forward`` makes of N rows."""

    sum: Tensor  # r (..., d); x itself where nothing is added
    read: Tensor  # n (..., d) in the dtype asked for
    wide: Tensor | None  # n (..., d) in the dtype of x, where it is carried on and read is another
    statistics: Tensor  # (2, N), float32: the means, and 1 / sqrt(variance + epsilon)


class Gradients(NamedTuple):
    x: Tensor  # (..., d)
    y: Tensor | None  # (..., d)
    vectors: tuple[Tensor | None, ...]  # of weight, bias and y's bias: (d,), float32


def forward(
    x: Tensor,  # (..., d), contiguous, as are all others
    y: Tensor | None,  # (..., d)
    y_bias: Tensor | None,  # (d,), with y
    weight: Tensor,  # (d,)
    bias: Tensor,  # (d,)
    seed: Tensor | None,  # (1,), where something is dropped
    *,
    dropout: float,
    epsilon: float,
    dtype: torch.dtype,
    twice: bool,
) -> Normed:
    width = x.shape[-1]
    rows = x.numel() // width
    made = Normed(
        x if y is None else torch.empty_like(x),
        torch.empty_like(x, dtype=dtype),
        torch.empty_like(x) if twice else None,
        torch.empty((2, rows), dtype=torch.float32, device=x.device),
    )
    if rows == 0:
        return made
    columns, tile, warps = _tiling(width)
    tensors, numbers = (x, y, y_bias, weight, bias, seed, *made), (rows, dropout, epsilon)
    constants = (width, y is not None, seed is not None, twice, tile, columns)
    with torch.cuda.device_of(x):  # where Triton launches
        _forward[(-(-rows // tile), 1)](*tensors, *numbers, *constants, num_warps=warps)
    return made


def backward(
    d_sum: Tensor | None,  # (..., d), of r
    d_read: Tensor | None,  # (..., d), of n
    d_wide: Tensor | None,  # (..., d), of n
    r: Tensor,  # (..., d)
    statistics: Tensor,  # (2, N)
    weight: Tensor,  # (d,)
    seed: Tensor | None,
    *,
    dropout: float,
    y_dtype: torch.dtype | None,  # None where nothing was added
) -> Gradients:
    width, rows = r.shape[-1], statistics.shape[1]
    columns, tile, warps = _tiling(width)
    programs = max(1, -(-rows // (tile * TILES)))  # one writes zeros where there are no rows
    d_x = torch.empty_like(r)
    d_y = None if y_dtype is None else torch.empty_like(r, dtype=y_dtype)
    sums = 2 if d_y is None else 3
    parts = torch.empty((programs, sums, width), dtype=torch.float32, device=r.device)
    tensors = (r, d_sum, d_read, d_wide, statistics, weight, seed, d_x, d_y, parts)
    given = [each is not None for each in (d_sum, d_read, d_wide, d_y)]
    constants = (width, *given, seed is not None, TILES, tile, columns)
    with torch.cuda.device_of(r):
        _backward[(programs, 1)](*tensors, rows, dropout, *constants, num_warps=warps)
    vectors = column_sums(parts).unbind(0)
    return Gradients(d_x, d_y, (*vectors, None) if d_y is None else vectors)


@cache
def _tiling(width: int) -> tuple[int, int, int]:
    """Columns, rows and warps of a tile; columns are a power of two, four of a draw at least."""
    columns = max(16, triton.next_power_of_2(width))
    rows = max(1, min(MOST_ROWS, ENTRIES // columns))
    return columns, rows, max(1, min(8, columns * rows // ENTRIES_OF_A_WARP))


@triton.jit(do_not_specialize=["rows", "dropout", "epsilon"])
def _forward(
    x, y, y_bias, weight, bias, seed, sums, reads, wides, statistics, rows, dropout, epsilon,
    WIDTH: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, TWICE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    inside = (row < rows)[:, None] & real[None, :]
    offset = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    r = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        added = tl.load(y + offset, mask=inside, other=0.0).to(tl.float32)
        added += tl.load(y_bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
        if DROP:
            keep = kept(seed, row, 0, dropout, WIDTH, ROWS, COLUMNS)
            added = tl.where(keep, added * (1.0 / (1.0 - dropout)), 0.0)
        rounded = (r + added).to(sums.dtype.element_ty)
        tl.store(sums + offset, rounded, mask=inside)
        r = rounded.to(tl.float32)  # as backward will read it
    r = tl.where(inside, r, 0.0)
    mean = tl.sum(r, 1) / WIDTH
    centred = tl.where(inside, r - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + epsilon)
    tl.store(statistics + row, mean, mask=row < rows)
    tl.store(statistics + rows + row, scale, mask=row < rows)
    gamma = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)[None, :]
    beta = tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
    n = centred * scale[:, None] * gamma + beta
    tl.store(reads + offset, n.to(reads.dtype.element_ty), mask=inside)
    if TWICE:
        tl.store(wides + offset, n.to(wides.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "dropout"])
def _backward(
    sums, d_sum, d_read, d_wide, statistics, weight, seed, d_x, d_y, parts, rows, dropout,
    WIDTH: tl.constexpr, SUM: tl.constexpr, READ: tl.constexpr, WIDE: tl.constexpr,
    ADD: tl.constexpr, DROP: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dr = d_sum + scale (g - mean(g) - u mean(g u)),  u = (r - mean) scale,  g = dn gamma."""
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    gamma = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)[None, :]
    for_gamma = tl.zeros((ROWS, COLUMNS), tl.float32)
    for_beta = tl.zeros((ROWS, COLUMNS), tl.float32)
    for_y_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & real[None, :]
        offset = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        r = tl.load(sums + offset, mask=inside, other=0.0).to(tl.float32)
        dn = tl.zeros((ROWS, COLUMNS), tl.float32)
        if READ:
            dn += tl.load(d_read + offset, mask=inside, other=0.0).to(tl.float32)
        if WIDE:
            dn += tl.load(d_wide + offset, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(statistics + row, mask=row < rows, other=0.0)[:, None]
        scale = tl.load(statistics + rows + row, mask=row < rows, other=0.0)[:, None]
        u = tl.where(inside, (r - mean) * scale, 0.0)
        g = dn * gamma
        common = tl.sum(g, 1)[:, None] / WIDTH
        along = tl.sum(g * u, 1)[:, None] / WIDTH
        d = (g - common - u * along) * scale
        if SUM:
            d += tl.load(d_sum + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_x + offset, d.to(d_x.dtype.element_ty), mask=inside)
        for_gamma += dn * u
        for_beta += dn
        if ADD:
            if DROP:
                keep = kept(seed, row, 0, dropout, WIDTH, ROWS, COLUMNS)
                d = tl.where(keep, d * (1.0 / (1.0 - dropout)), 0.0)
            tl.store(d_y + offset, d.to(d_y.dtype.element_ty), mask=inside)
            for_y_bias += tl.where(inside, d, 0.0)
    own = parts + program * (3 if ADD else 2) * WIDTH + column
    tl.store(own, tl.sum(for_gamma, 0), mask=real)
    tl.store(own + WIDTH, tl.sum(for_beta, 0), mask=real)
    if ADD:
        tl.store(own + 2 * WIDTH, tl.sum(for_y_bias, 0), mask=real)
