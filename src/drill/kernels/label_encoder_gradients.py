"""Kernels of ``label_encoder_fused``, backward; shapes as in ``label_encoder_products``."""

import triton
import triton.language as tl

from drill.kernels.label_encoder_products import filled_up, flat_tile, half_of
from drill.kernels.label_encoder_steps import slope


@triton.jit
def start_gradient(
    dY,  # (V, d)
    P,  # (V, d) of the last map
    dP,  # (rows, d) written
    sums,  # (row blocks, d) sums of dP, written
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of the last map's product from that of the labels."""
    tiles = tl.cdiv(width, COLUMNS)
    row_block = tl.program_id(0) // tiles
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = row_block * ROWS + tl.arange(0, ROWS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    g = tl.load(dY + at, mask=inside, other=0.0).to(tl.float32)
    g *= slope(tl.load(P + at, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    room = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(dP + at, g.to(dP.dtype.element_ty), mask=room)
    if HAS_BIAS:
        block = sums + row_block.to(tl.int64) * width
        tl.store(block + column, tl.sum(g, 0), mask=column < width)


@triton.jit
def map_gradient(
    dP,  # (V, d) of this map
    U,  # (d, d)
    mask_in,  # (1, d) of this map
    P_below,  # (V, d)
    dX,  # (V, d) gradient of what this map reads, written
    dP_below,  # (rows, d) written
    sums,  # (row blocks, d) sums of dP_below, written
    count,
    order,  # (d,) of this map's input
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_BELOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """dP U, past the mask and the activation below: the gradient of the product below."""
    tiles = tl.cdiv(width, COLUMNS)
    row_block = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * COLUMNS
    position = first + tl.arange(0, COLUMNS)
    row = row_block * ROWS + tl.arange(0, ROWS)
    n = tl.load(count)
    m = filled_up(tl.load(count + 1))
    if first >= n:
        return
    own = row < labels
    k = tl.arange(0, INNER)
    P_at = dP + row.to(tl.int64)[:, None] * width + k[None, :]
    U_at = U + k[:, None] * width + position[None, :]
    g = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, m, INNER):
        valid = k < m - start
        p = tl.load(P_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled_up(n))[None, :], other=0.0)
        g = tl.dot(p, u, g, input_precision="ieee")
        P_at += INNER
        U_at += INNER * width
    for half in tl.static_range(2):
        _end_of_gradient(
            half_of(g, half),
            mask_in,
            P_below,
            dX,
            dP_below,
            sums,
            order,
            row_block,
            row,
            first + half * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2),
            n,
            labels,
            rows,
            width,
            ACTIVATION,
            HAS_BIAS,
            KEEP,
            HAS_BELOW,
        )


@triton.jit
def _end_of_gradient(
    g,
    mask_in,
    P_below,
    dX,
    dP_below,
    sums,
    order,
    row_block,
    row,
    position,
    n,
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_BELOW: tl.constexpr,
):
    """All of ``map_gradient`` that follows its product."""
    column = tl.load(order + position, mask=position < n, other=width)
    own = row < labels
    at = row.to(tl.int64)[:, None] * width + position[None, :]
    filled = filled_up(n)
    stored = own[:, None] & (position < filled)[None, :]
    g *= tl.load(mask_in + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if KEEP:
        tl.store(dX + at, g.to(dX.dtype.element_ty), mask=stored)
    if HAS_BELOW:
        g *= slope(tl.load(P_below + at, mask=stored, other=0.0).to(tl.float32), ACTIVATION)
        room = (row < rows)[:, None] & (position < filled)[None, :]
        tl.store(dP_below + at, g.to(dP_below.dtype.element_ty), mask=room)
        if HAS_BIAS:
            block = sums + row_block.to(tl.int64) * width
            tl.store(block + position, tl.sum(g, 0), mask=position < filled)


@triton.jit
def sum_over_labels(
    dP,  # (L, rows, d)
    X,  # (L, rows, d) what the maps multiplied
    partial,  # (L, splits, d, d) float32, written
    count,  # (L, 4)
    labels,
    width,
    plane,
    splits,
    labels_per_split,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """dP^T X of one map over one split of the labels."""
    tiles = tl.cdiv(width, COLUMNS)
    first_row = tl.program_id(0) // tiles * ROWS
    first_column = tl.program_id(0) % tiles * COLUMNS
    split = tl.program_id(1)
    layer = tl.program_id(2)
    n = filled_up(tl.load(count + layer * 4))
    m = filled_up(tl.load(count + layer * 4 + 1))
    if (first_row >= m) | (first_column >= n):
        return
    row = first_row + tl.arange(0, ROWS)
    column = first_column + tl.arange(0, COLUMNS)
    start = split * labels_per_split
    stop = tl.minimum(labels, start + labels_per_split)
    k = tl.arange(0, INNER)
    line = (start + k).to(tl.int64) * width
    P_at = dP + layer.to(tl.int64) * plane + line[None, :] + row[:, None]
    X_at = X + layer.to(tl.int64) * plane + line[:, None] + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for label in range(start, stop, INNER):
        valid = k < stop - label
        p = tl.load(P_at, mask=(row < m)[:, None] & valid[None, :], other=0.0)
        x = tl.load(X_at, mask=valid[:, None] & (column < n)[None, :], other=0.0)
        total = tl.dot(p, x, total, input_precision="ieee")
        P_at += INNER * width
        X_at += INNER * width
    at = partial + (layer * splits + split).to(tl.int64) * width * width
    at += row[:, None] * width + column[None, :]
    tl.store(at, total, mask=(row < m)[:, None] & (column < n)[None, :])


@triton.jit
def finish(
    partial,  # (L, splits, d, d) of all U
    sums,  # (L, row blocks, d) of all b
    dY,  # (V, d)
    dX,  # (L or 1, V, d) gradients of what the maps read
    dU,  # (L, d, d) written
    db,  # (L, d) written
    dE,  # (V, d) written
    place,  # (L + 1, d)
    count,  # (L, 4)
    labels,
    width,
    plane,
    splits,
    row_blocks,
    U_programs,  # per map; those beyond DEPTH times as many serve dE
    DEPTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of partial sums: gradients of all U, b and E."""
    program = tl.program_id(0)
    tiles = tl.cdiv(width, COLUMNS)
    layer = program // U_programs
    if layer < DEPTH:
        block = program - layer * U_programs
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        _finish_map(partial, dU, place, count, layer, row, column, width, splits)
        if HAS_BIAS:
            _finish_bias(sums, db, place, count, layer, block, width, row_blocks, ROWS, COLUMNS)
    else:
        block = program - DEPTH * U_programs
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        _finish_labels(dY, dX, dE, place, count, row, column, labels, width, plane, DEPTH, RESIDUAL)


@triton.jit
def _finish_map(partial, dU, place, count, layer, row, column, width, splits):
    inside = (row < width) & (column < width)
    own = place + layer * width
    column_at = tl.load(own + column, mask=inside, other=width)
    row_at = tl.load(own + width + row, mask=inside, other=width)
    n = tl.load(count + layer * 4)
    m = tl.load(count + layer * 4 + 1)
    read = (column_at < n) & (row_at < m)
    part = partial + (layer * splits).to(tl.int64) * width * width + row_at * width + column_at
    total = tl.zeros(row.shape, tl.float32)
    for _ in range(0, splits):
        total += tl.load(part, mask=read, other=0.0)
        part += width * width
    stored = layer.to(tl.int64) * width * width + row * width + column
    tl.store(dU + stored, total.to(dU.dtype.element_ty), mask=inside)


@triton.jit
def _finish_bias(
    sums,
    db,
    place,
    count,
    layer,
    block,
    width,
    row_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    if block * COLUMNS < width:  # the first programs of a map take a strip of its bias each
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        m = tl.load(count + layer * 4 + 1)
        at = tl.load(place + (layer + 1) * width + column, mask=inside, other=width)
        read = at < m
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
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
    place,
    count,
    row,
    column,
    labels,
    width,
    plane,
    DEPTH: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    inside = (row < labels) & (column < width)
    line = row.to(tl.int64) * width
    total = tl.zeros(row.shape, tl.float32)
    if RESIDUAL:
        total = tl.load(dY + line + column, mask=inside, other=0.0).to(tl.float32)
    for layer in tl.static_range(DEPTH):
        if RESIDUAL or layer == 0:
            own = dX + layer * tl.cast(plane, tl.int64) + line
            n = tl.load(count + layer * 4)
            at = tl.load(place + layer * width + column, mask=column < width, other=width)
            read = (row < labels) & (at < n)
            total += tl.load(own + at, mask=read, other=0.0).to(tl.float32)
    tl.store(dE + line + column, total.to(dE.dtype.element_ty), mask=inside)
