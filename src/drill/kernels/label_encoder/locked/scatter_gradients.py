"""Kernel of ``locked_encode`` that sums the parts of gradients, each in its place again.

Shapes as in ``gather_columns``.
"""

import triton
import triton.language as tl

from drill.kernels.label_encoder.locked.gather_columns import _COLUMNS, begin, flat_tile


@triton.jit
def finish(
    partial,  # (L, splits, d, d) of all U
    sums,  # (L, row blocks, d) of all b
    dY,  # (V, d)
    dX,  # (L, V, d) gradients of what the maps read
    dU,  # (L, d, d) written
    db,  # (L, d) written
    dE,  # (V, d) written
    position,  # (L + 1, d)
    count,  # (L, 4)
    labels,
    width,
    plane,
    row_blocks,
    U_programs,  # per map; those beyond DEPTH times as many serve dE
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    U_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Sums of partial sums: gradients of all U, b and E."""
    begin(OVERLAP)
    program = tl.program_id(0)
    layer = program // U_programs
    if layer < DEPTH:
        block = program - layer * U_programs
        _finish_map(partial, dU, position, count, layer, block, width, SPLITS, U_ROWS)
        _finish_bias(sums, db, position, count, layer, block, width, row_blocks, ROWS)
    else:
        block = program - DEPTH * U_programs
        _finish_labels(dY, dX, dE, position, count, block, labels, width, plane, DEPTH, ROWS)


@triton.jit
def _finish_map(
    partial,
    dU,
    position,
    count,
    layer,
    block,
    width,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, column = flat_tile(block, tl.cdiv(width, _COLUMNS), ROWS)
    inside = (row < width) & (column < width)
    own = position + layer * width
    column_at = tl.load(own + column, mask=inside, other=width)
    row_at = tl.load(own + width + row, mask=inside, other=width)
    n = tl.load(count + layer * 4)
    m = tl.load(count + layer * 4 + 1)
    read = (column_at < n) & (row_at < m)
    part = partial + (layer * SPLITS).to(tl.int64) * width * width + row_at * width + column_at
    total = tl.zeros(row.shape, tl.float32)
    for _ in tl.static_range(SPLITS):  # all loads at once, one after the other they would wait
        total += tl.load(part, mask=read, other=0.0)
        part += width * width
    stored = layer.to(tl.int64) * width * width + row * width + column
    tl.store(dU + stored, total.to(dU.dtype.element_ty), mask=inside)


@triton.jit
def _finish_bias(
    sums,
    db,
    position,
    count,
    layer,
    block,
    width,
    row_blocks,
    ROWS: tl.constexpr,
):
    if block * _COLUMNS < width:  # the first programs of a map take a strip of its bias each
        column = block * _COLUMNS + tl.arange(0, _COLUMNS)
        inside = column < width
        m = tl.load(count + layer * 4 + 1)
        at = tl.load(position + (layer + 1) * width + column, mask=inside, other=width)
        read = at < m
        total = tl.zeros((ROWS, _COLUMNS), tl.float32)
        for start in range(0, row_blocks, ROWS):
            part = start + tl.arange(0, ROWS)
            line = (layer * row_blocks + part).to(tl.int64) * width
            total += tl.load(
                sums + line[:, None] + at[None, :],
                mask=(part < row_blocks)[:, None] & read[None, :],
                other=0.0,
            )
        bias = tl.sum(total, 0).to(db.dtype.element_ty)
        tl.store(db + layer * width + column, bias, mask=inside)


@triton.jit
def _finish_labels(
    dY,
    dX,
    dE,
    position,
    count,
    block,
    labels,
    width,
    plane,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, column = flat_tile(block, tl.cdiv(width, _COLUMNS), ROWS)
    inside = (row < labels) & (column < width)
    line = row.to(tl.int64) * width
    total = tl.load(dY + line + column, mask=inside, other=0.0).to(tl.float32)
    for layer in tl.static_range(DEPTH):
        own = dX + layer * tl.cast(plane, tl.int64) + line
        n = tl.load(count + layer * 4)
        at = tl.load(position + layer * width + column, mask=column < width, other=width)
        read = (row < labels) & (at < n)
        total += tl.load(own + at, mask=read, other=0.0).to(tl.float32)
    tl.store(dE + line + column, total.to(dE.dtype.element_ty), mask=inside)
