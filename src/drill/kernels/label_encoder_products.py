"""Kernels of ``label_encoder_fused``: matrix products with the pointwise work in their epilogues.

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

from drill.kernels.label_encoder_steps import activate, mask_at, slope

_ALIGNED = tl.constexpr(16)  # what Triton asks of a size before it trusts it to be a multiple


@triton.jit
def _filled(count):
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
        row, column = _flat_tile(block, tiles, ROWS, COLUMNS)
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
        row, column = _flat_tile(block, tiles, ROWS, COLUMNS)
        _narrow_labels(
            E, masks, X, place, count, row, column, labels, width, plane, DEPTH, RESIDUAL
        )


@triton.jit
def _flat_tile(block, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
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
                mask=inside & (at < _filled(n)),
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
        n = _filled(tl.load(count))
        if HAS_NEXT:
            m = tl.load(count + 1)
            filled = _filled(m)
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


@triton.jit(do_not_specialize=["turn"])
def start_gradient(
    dY,  # (V, d)
    mask_out,  # of the last map, which is map ``turn``
    P,  # (V, d) of the last map
    dP,  # (V, d) written
    sums,  # (row blocks, d) sums of dP, written
    labels,
    width,
    turn,
    scale,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_OUT: tl.constexpr,
    LOCKED: tl.constexpr,
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
    if HAS_OUT:
        g *= mask_at(mask_out, at, column, inside, width, turn, scale, LOCKED)
    g *= slope(tl.load(P + at, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    tl.store(dP + at, g.to(dP.dtype.element_ty), mask=inside)
    if HAS_BIAS:
        block = sums + row_block.to(tl.int64) * width
        tl.store(block + column, tl.sum(g, 0), mask=column < width)


@triton.jit(do_not_specialize=["turn"])
def map_gradient(
    dP,  # (V, d) of this map
    U,  # (d, d)
    mask_in,  # of this map
    mask_out,  # of the map below, which is map ``turn``
    P_below,  # (V, d)
    above,  # (V, d) gradient of this map's result, for BETWEEN
    G,  # (V, d) float32: that of the result below, written for BETWEEN
    dX,  # (V, d) gradient of what this map reads, written
    dP_below,  # (V, d) written
    sums,  # (row blocks, d) sums of dP_below, written
    count,
    order,  # (d,) of this map's input
    labels,
    width,
    turn,
    scale,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_OUT: tl.constexpr,
    HAS_IN: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_BELOW: tl.constexpr,
    BETWEEN: tl.constexpr,
    LOCKED: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """dP U, past the masks and the activation below: the gradient of the product below."""
    tiles = tl.cdiv(width, COLUMNS)
    row_block = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * COLUMNS
    position = first + tl.arange(0, COLUMNS)
    row = row_block * ROWS + tl.arange(0, ROWS)
    m = width
    filled = width
    column = position
    if NARROW:
        n = tl.load(count)
        m = _filled(tl.load(count + 1))
        filled = _filled(n)
        if first >= n:
            return
        column = tl.load(order + position, mask=position < n, other=width)
    own = row < labels
    line = row.to(tl.int64)[:, None] * width
    k = tl.arange(0, INNER)
    P_at = dP + line + k[None, :]
    U_at = U + k[:, None] * width + position[None, :]
    g = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, m, INNER):
        valid = k < m - start
        p = tl.load(P_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled)[None, :], other=0.0)
        g = tl.dot(p, u, g, input_precision="ieee")
        P_at += INNER
        U_at += INNER * width
    inside = own[:, None] & (column < width)[None, :]
    at = line + column[None, :]
    stored = own[:, None] & (position < filled)[None, :]
    if HAS_IN:
        g *= mask_at(mask_in, at, column, inside, width, turn + 1, scale, LOCKED)
    if KEEP:
        tl.store(dX + line + position[None, :], g.to(dX.dtype.element_ty), mask=stored)
    if HAS_BELOW:
        if BETWEEN:
            g += tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(G + at, g, mask=inside)
        if HAS_OUT:
            g *= mask_at(mask_out, at, column, inside, width, turn, scale, LOCKED)
        x = tl.load(P_below + line + position[None, :], mask=stored, other=0.0)
        g *= slope(x.to(tl.float32), ACTIVATION)
        tl.store(dP_below + line + position[None, :], g.to(dP_below.dtype.element_ty), mask=stored)
        if HAS_BIAS:
            block = sums + row_block.to(tl.int64) * width
            tl.store(block + position, tl.sum(g, 0), mask=position < filled)


@triton.jit
def sum_over_labels(
    dP,  # (L, V, d)
    X_first,  # (V, d) what the first map multiplied
    X_rest,  # (L - 1, V, d) what the others did
    partial,  # (L, splits, d, d) float32, written
    count,  # (L, 4)
    labels,
    width,
    plane,
    splits,
    labels_per_split,
    NARROW: tl.constexpr,
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
    n = width
    m = width
    if NARROW:
        n = _filled(tl.load(count + layer * 4))
        m = _filled(tl.load(count + layer * 4 + 1))
        if (first_row >= m) | (first_column >= n):
            return
    row = first_row + tl.arange(0, ROWS)
    column = first_column + tl.arange(0, COLUMNS)
    start = split * labels_per_split
    stop = tl.minimum(labels, start + labels_per_split)
    X = X_first
    if layer > 0:
        X = X_rest + (layer - 1).to(tl.int64) * plane
    k = tl.arange(0, INNER)
    line = (start + k).to(tl.int64) * width
    P_at = dP + layer.to(tl.int64) * plane + line[None, :] + row[:, None]
    X_at = X + line[:, None] + column[None, :]
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
    BETWEEN: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of partial sums: gradients of all U and b, and of E.

    E gets a gradient through the first map and, with residuals, from every result. That of result i
    is dY, plus dX of the next map; with BETWEEN plus dX of all maps above.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(width, COLUMNS)
    layer = program // U_programs
    if layer < DEPTH:
        block = program - layer * U_programs
        row, column = _flat_tile(block, tiles, ROWS, COLUMNS)
        _finish_map(partial, dU, place, count, layer, row, column, width, splits, NARROW)
        if HAS_BIAS:
            _finish_bias(
                sums, db, place, count, layer, block, width, row_blocks, NARROW, ROWS, COLUMNS
            )
    else:
        block = program - DEPTH * U_programs
        row, column = _flat_tile(block, tiles, ROWS, COLUMNS)
        _finish_labels(
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
            DEPTH,
            RESIDUAL,
            BETWEEN,
            NARROW,
        )


@triton.jit
def _finish_map(partial, dU, place, count, layer, row, column, width, splits, NARROW: tl.constexpr):
    inside = (row < width) & (column < width)
    read = inside
    at = row * width + column
    stored = layer.to(tl.int64) * width * width + at
    if NARROW:
        own = place + layer * width
        column_at = tl.load(own + column, mask=inside, other=width)
        row_at = tl.load(own + width + row, mask=inside, other=width)
        n = tl.load(count + layer * 4)
        m = tl.load(count + layer * 4 + 1)
        read = (column_at < n) & (row_at < m)
        at = row_at * width + column_at
    part = partial + (layer * splits).to(tl.int64) * width * width + at
    total = tl.zeros(row.shape, tl.float32)
    for _ in range(0, splits):
        total += tl.load(part, mask=read, other=0.0)
        part += width * width
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
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    if block * COLUMNS < width:  # the first programs of a map take a strip of its bias each
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        read = inside
        at = column
        if NARROW:
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
    BETWEEN: tl.constexpr,
    NARROW: tl.constexpr,
):
    inside = (row < labels) & (column < width)
    line = row.to(tl.int64) * width
    total = tl.zeros(row.shape, tl.float32)
    if RESIDUAL:
        total = tl.load(dY + line + column, mask=inside, other=0.0).to(tl.float32)
        if BETWEEN:
            total *= DEPTH
    for layer in tl.static_range(DEPTH):
        if RESIDUAL or layer == 0:
            own = dX + layer * tl.cast(plane, tl.int64) + line
            if NARROW:
                n = tl.load(count + layer * 4)
                at = tl.load(place + layer * width + column, mask=column < width, other=width)
                g = tl.load(own + at, mask=(row < labels) & (at < n), other=0.0).to(tl.float32)
            else:
                g = tl.load(own + column, mask=inside, other=0.0).to(tl.float32)
            if BETWEEN and layer > 0:
                g *= layer
            total += g
    tl.store(dE + line + column, total.to(dE.dtype.element_ty), mask=inside)
