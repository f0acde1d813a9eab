"""``relu_dropout`` as Triton kernels. Imported on first use."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.transformer.row_tiles import column_sums, kept

ROWS, COLUMNS = 16, 128  # of a tile
TILES = 8  # of rows that a program of the backward pass sums before it writes to ``parts``
_WARPS = 4


def forward(
    x: Tensor,  # (..., m), contiguous, as is bias
    bias: Tensor,  # (m,)
    seed: Tensor | None,  # (1,), where something is dropped
    dropout: float,
) -> Tensor:
    width = x.shape[-1]
    rows = x.numel() // width
    out = torch.empty_like(x)
    if rows == 0:
        return out
    grid = (-(-rows // ROWS), -(-width // COLUMNS))
    constants = (width, seed is not None, ROWS, COLUMNS)
    with torch.cuda.device_of(x):  # where Triton launches
        _forward[grid](x, bias, seed, out, rows, dropout, *constants, num_warps=_WARPS)
    return out


def backward(grad: Tensor, out: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Gradients of x, (..., m), and of the bias, (m,) in float32."""
    width = out.shape[-1]
    rows = out.numel() // width
    d_x = torch.empty_like(out)
    programs = max(1, -(-rows // (ROWS * TILES)))  # one writes zeros where there are no rows
    parts = torch.empty((programs, width), dtype=torch.float32, device=out.device)
    grid = (programs, -(-width // COLUMNS))
    numbers, constants = (rows, 1.0 / (1.0 - dropout)), (width, TILES, ROWS, COLUMNS)
    with torch.cuda.device_of(out):
        _backward[grid](grad, out, d_x, parts, *numbers, *constants, num_warps=_WARPS)
    return d_x, column_sums(parts)


@triton.jit(do_not_specialize=["rows", "dropout"])
def _forward(
    x, bias, seed, out, rows, dropout,
    WIDTH: tl.constexpr, DROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    real = column < WIDTH
    inside = (row < rows)[:, None] & real[None, :]
    offset = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    b = tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32) + b
    value = tl.where(value <= 0.0, 0.0, value)  # NaN stays
    if DROP:
        keep = kept(seed, row, first, dropout, WIDTH, ROWS, COLUMNS)
        value = tl.where(keep, value * (1.0 / (1.0 - dropout)), 0.0)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "scale"])
def _backward(
    grad, out, d_x, parts, rows, scale,
    WIDTH: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What is 0 was negative or dropped: either way its gradient is 0."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < WIDTH
    for_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & real[None, :]
        offset = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        value = tl.load(out + offset, mask=inside, other=0.0)
        d = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32) * scale
        d = tl.where(value <= 0.0, 0.0, d)
        tl.store(d_x + offset, d.to(d_x.dtype.element_ty), mask=inside)
        for_bias += d
    tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(for_bias, 0), mask=real)
