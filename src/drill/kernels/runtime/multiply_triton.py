"""A tensor of half precision times float32 factors, as a Triton kernel. Imported on first use.

PyTorch multiplies tensors of two dtypes entry by entry, several times slower than it reads and
writes tensors of one.
"""

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 4, 512


@triton.jit
def _multiply(
    x,  # (rows, columns)
    factor,  # an entry at row * row_stride + column * column_stride
    out,  # (rows, columns), written
    rows,
    columns,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    program, across = tl.program_id(0).to(tl.int64), tl.cdiv(columns, COLUMNS)
    row = program // across * ROWS + tl.arange(0, ROWS)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    f = tl.load(factor + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside)
    at = row[:, None] * columns + column[None, :]
    product = tl.load(x + at, mask=inside).to(tl.float32) * f
    tl.store(out + at, product.to(out.dtype.element_ty), mask=inside)


def multiply(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor | None:
    """x * factor in ``dtype``, rounded once; None where the kernel does not serve.

    It serves contiguous tensors, and factors of rows, of columns, of entries, or one.
    """
    layout = _layout(x.shape, factor.shape)
    if layout is None or not (x.is_contiguous() and factor.is_contiguous()):
        return None
    out = torch.empty_like(x, dtype=dtype)
    if out.numel():
        rows, columns, *strides = layout
        height = min(_ROWS, triton.next_power_of_2(rows))
        width = min(_COLUMNS, triton.next_power_of_2(columns))
        grid = (triton.cdiv(rows, height) * triton.cdiv(columns, width),)
        with torch.cuda.device_of(x):
            _multiply[grid](x, factor, out, rows, columns, *strides, height, width, num_warps=4)
    return out


def _layout(shape: torch.Size, factors: torch.Size) -> tuple[int, int, int, int] | None:
    """Rows and columns of x, and the factors' strides over them."""
    if len(factors) > len(shape):
        return None
    factors = torch.Size([1] * (len(shape) - len(factors)) + list(factors))
    for split in range(len(shape) + 1):
        rows, columns = prod(shape[:split]), prod(shape[split:])
        if factors[split:] == shape[split:] and prod(factors[:split]) == 1:
            return rows, columns, 0, 1
        if factors[:split] == shape[:split] and prod(factors[split:]) == 1:
            return rows, columns, 1, 0
    return None
