"""Kernels of ``label_encoder_fused``, forward: products with the pointwise work in their epilogues.

Shapes: V labels, d width, L maps. A map reads n of the d columns of its input and gives m of the d
columns of its result; both are d unless the encoder is narrow.

Narrow: a locked mask on the inputs drops the same columns for every label. What a map does not read
need not be computed by the map below, nor get a gradient, so each map becomes a product of
(V, n) with (n, m), where m is what the next map reads. The columns that are read stand first:
``place`` (d,) says where a column stands, ``order`` (d,) which column stands there, and ``count``
(n, m) how many are read. Only the device knows n: programs beyond it end at once. Columns up to the
next multiple of 16 are zeros, which keeps loads aligned.
"""

import triton
import triton.language as tl

from drill.kernels.label_encoder_steps import activate, mask_at

_ALIGNED = tl.constexpr(16)  # what Triton asks of a size before it trusts it to be a multiple


@triton.jit
def filled_up(count):
    return (count + (_ALIGNED - 1)) // _ALIGNED * _ALIGNED


@triton.jit
def arrange(
    masks,  # (L, 1, d)
    place,  # (L + 1, d) written
    order,  # (L + 1, d) written
    count,  # (L, 4): n, m, unused, unused; written
    width,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where the columns stand that one map reads, and at DEPTH those of the result: all."""
    layer = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    masked = tl.where(layer < DEPTH, width, 0)
    mask = tl.load(masks + layer * width + column, mask=column < masked, other=1.0)
    read = ((column < width) & (mask != 0)).to(tl.int32)
    n = tl.sum(read, 0)
    before = tl.cumsum(read, 0) - read
    at = tl.where(read != 0, before, n + column - before)
    tl.store(place + layer * width + column, at, mask=column < width)
    tl.store(order + layer * width + at, column, mask=column < width)
    if layer < DEPTH:
        tl.store(count + layer * 4, n)
    if layer > 0:
        tl.store(count + (layer - 1) * 4 + 1, n)


@triton.jit
def narrow(
    E,  # (V, d)
    masks,  # (L, 1, d)
    U,  # (L, d, d)
    X,  # (L, V, d) what the first map multiplies and, with RESIDUAL, what is added for the others
    U_narrow,  # (L, d, d) written
    place,  # (L + 1, d)
    count,  # (L, 4)
    labels,
    width,
    plane,
    U_programs,  # per map; those beyond DEPTH times as many serve E
    DEPTH: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """E and all U with the columns and rows that are read in front.

    Tiles are flat here and in ``finish``, so that the threads of a warp stand side by side in a
    row: for two dimensions Triton decides that by what it knows of addresses, here nothing.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(width, COLUMNS)
    layer = program // U_programs
    if layer < DEPTH:
        block = program - layer * U_programs
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        inside = (row < width) & (column < width)
        n = tl.load(count + layer * 4)
        m = tl.load(count + layer * 4 + 1)
        own = place + layer * width
        column_at = tl.load(own + column, mask=inside, other=width)
        row_at = tl.load(own + width + row, mask=inside, other=width)
        plane_of_U = layer.to(tl.int64) * width * width
        read = (column_at < n) & (row_at < m)  # the others become the zeros behind
        u = tl.load(U + plane_of_U + row * width + column, mask=read, other=0.0)
        at = plane_of_U + row_at * width + column_at
        tl.store(U_narrow + at, u.to(U_narrow.dtype.element_ty), mask=inside)
    else:
        block = program - DEPTH * U_programs
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        _narrow_labels(
            E, masks, X, place, count, row, column, labels, width, plane, DEPTH, RESIDUAL
        )


@triton.jit
def flat_tile(block, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Row and column of each entry of a tile, one row after the other."""
    index = tl.arange(0, ROWS * COLUMNS)
    return block // tiles * ROWS + index // COLUMNS, block % tiles * COLUMNS + index % COLUMNS


@triton.jit
def _narrow_labels(
    E,
    masks,
    X,
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
    e = tl.load(E + line + column, mask=inside, other=0.0).to(tl.float32)
    for layer in tl.static_range(DEPTH):
        if RESIDUAL or layer == 0:
            n = tl.load(count + layer * 4)
            at = tl.load(place + layer * width + column, mask=column < width, other=width)
            x = e
            if layer == 0:
                x *= tl.load(masks + column, mask=column < width, other=0.0).to(tl.float32)
            x = tl.where(at < n, x, 0.0)
            tl.store(
                X + layer * tl.cast(plane, tl.int64) + line + at,
                x.to(X.dtype.element_ty),
                mask=inside & (at < filled_up(n)),
            )


@triton.jit(do_not_specialize=["turn"])
def map_labels(
    X,  # (V, d) what this map multiplies
    U,  # (d, d)
    b,  # (d,)
    E,  # (V, d)
    mask_out,  # of this map, which is map ``turn``, see ``mask_at``
    mask_next,  # on the input of the next map
    before,  # (V, d) what this map read, without dropout, for BETWEEN
    P,  # (V, d) the product with its bias, written for backward
    X_next,  # (V, d) what the next map multiplies, written; NARROW: holds what is added to it
    Y,  # (V, d) the map's result without dropout, written where asked for
    count,
    order,  # (d,) of the next map's input
    labels,
    width,
    turn,
    scale,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_OUT: tl.constexpr,
    HAS_IN: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    HAS_RESULT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BETWEEN: tl.constexpr,
    LOCKED: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """act(X U^T + b), dropped and with its residuals, and dropped again for the next map."""
    tiles = tl.cdiv(width, COLUMNS)
    row_block = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * COLUMNS
    position = first + tl.arange(0, COLUMNS)
    row = row_block * ROWS + tl.arange(0, ROWS)
    n = width
    filled = width
    column = position
    if NARROW:
        n = filled_up(tl.load(count))
        if HAS_NEXT:
            m = tl.load(count + 1)
            filled = filled_up(m)
            if first >= m:
                return
            column = tl.load(order + position, mask=position < m, other=width)
    own = row < labels
    line = row.to(tl.int64)[:, None] * width
    k = tl.arange(0, INNER)
    X_at = X + line + k[None, :]
    U_at = U + position[None, :] * width + k[:, None]
    p = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, n, INNER):
        valid = k < n - start
        x = tl.load(X_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled)[None, :], other=0.0)
        p = tl.dot(x, u, p, input_precision="ieee")
        X_at += INNER
        U_at += INNER
    inside = own[:, None] & (column < width)[None, :]
    at = line + column[None, :]
    stored = own[:, None] & (position < filled)[None, :]
    if HAS_BIAS:
        p += tl.load(b + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if KEEP:
        tl.store(P + line + position[None, :], p.to(P.dtype.element_ty), mask=stored)
    y = activate(p, ACTIVATION)
    if HAS_OUT:
        y *= mask_at(mask_out, at, column, inside, width, turn, scale, LOCKED)
    if BETWEEN:
        y += tl.load(before + at, mask=inside, other=0.0).to(tl.float32)
    next_at = line + position[None, :]
    if RESIDUAL:
        if NARROW and HAS_NEXT:
            y += tl.load(X_next + next_at, mask=stored, other=0.0).to(tl.float32)
        else:
            y += tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESULT:
        tl.store(Y + at, y.to(Y.dtype.element_ty), mask=inside)
    if HAS_NEXT:
        if HAS_IN:
            y *= mask_at(mask_next, at, column, inside, width, turn + 1, scale, LOCKED)
        tl.store(X_next + next_at, y.to(X_next.dtype.element_ty), mask=stored)
