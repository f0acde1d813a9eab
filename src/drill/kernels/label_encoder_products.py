"""Kernels of ``label_encoder_fused``, forward: products with the pointwise work in their epilogues.

Shapes: V labels, d width, L maps; rows >= V as the loss wants them, those beyond V zeros. A map
reads n of the d columns of its input and gives m of the d columns of its result, the last map d.

A locked mask on the inputs drops the same columns for every label. What a map does not read
need not be computed by the map below, nor get a gradient, so each map becomes a product of
(V, n) with (n, m), where m is what the next map reads. The columns that are read stand first:
``place`` (d,) says where a column stands, ``order`` (d,) which column stands there, and ``count``
(n, m) how many are read. Only the device knows n: programs beyond it end at once. Columns up to the
next multiple of 16 are zeros, which keeps loads aligned. Rows of ``count`` have room for four
numbers, 16 bytes: were they narrower, Triton would compile the kernels of a map twice, for rows
that are aligned and rows that are not.
"""

import triton
import triton.language as tl

from drill.kernels.label_encoder_steps import activate

_ALIGNED = tl.constexpr(16)  # what Triton asks of a size before it trusts it to be a multiple


@triton.jit
def filled_up(count):
    return (count + (_ALIGNED - 1)) // _ALIGNED * _ALIGNED


@triton.jit
def arrange(
    masks,  # (L, 1, d)
    place,  # (L + 1, d) written
    order,  # (L + 1, d) written
    count,  # (L, 4): n, m and room; written
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
    X,  # (L, rows, d) what the first map multiplies and, with RESIDUAL, what the others add
    U_narrow,  # (L, d, d) written
    order,  # (L + 1, d)
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

    Programs stand where they write, so that scattered are the reads, which caches serve, and not
    the writes. Tiles are flat here and in ``finish``, so that the threads of a warp stand side by
    side in a row: for two dimensions Triton decides that by what it knows of addresses, here
    nothing.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(width, COLUMNS)
    layer = program // U_programs
    if layer < DEPTH:
        block = program - layer * U_programs
        n = tl.load(count + layer * 4)
        m = tl.load(count + layer * 4 + 1)
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        own = order + layer * width
        # Not up to n, of which nothing is known: then these loads would not be wide.
        column_of = tl.load(own + column, mask=column < width, other=0)
        row_of = tl.load(own + width + row, mask=row < width, other=0)
        start = layer.to(tl.int64) * width * width
        read = (row < m) & (column < n)
        u = tl.load(U + start + row_of * width + column_of, mask=read, other=0.0)
        tl.store(
            U_narrow + start + row * width + column,
            u.to(U_narrow.dtype.element_ty),
            mask=(row < filled_up(m)) & (column < filled_up(n)),
        )
    else:
        # The maps of the same labels follow one another: they read the same rows of E.
        index = program - DEPTH * U_programs
        maps: tl.constexpr = DEPTH if RESIDUAL else 1
        layer = index % maps
        _narrow_labels(
            E, masks, X, order, count, index // maps, layer, labels, width, plane, ROWS, COLUMNS
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
    order,
    count,
    block,
    layer,
    labels,
    width,
    plane,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tiles = tl.cdiv(width, COLUMNS)
    n = tl.load(count + layer * 4)
    if block % tiles * COLUMNS < n:
        row, column = flat_tile(block, tiles, ROWS, COLUMNS)
        line = row.to(tl.int64) * width
        read = column < n
        column_of = tl.load(order + layer * width + column, mask=column < width, other=0)
        x = tl.load(E + line + column_of, mask=(row < labels) & read, other=0.0).to(tl.float32)
        if layer == 0:
            x *= tl.load(masks + column_of, mask=read, other=0.0).to(tl.float32)
        tl.store(
            X + layer.to(tl.int64) * plane + line + column,
            x.to(X.dtype.element_ty),
            mask=(row < labels) & (column < filled_up(n)),
        )


@triton.jit
def map_labels(
    X,  # (V, d) what this map multiplies
    U,  # (d, d)
    b,  # (d,)
    E,  # (V, d)
    mask_next,  # (1, d) on the input of the next map
    P,  # (V, d) the product with its bias, written for backward
    X_next,  # (rows, d) what the next map multiplies, written; holds what is added to it
    Y,  # (rows, d) the labels, written by the last map
    count,
    order,  # (d,) of the next map's input
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """act(X U^T + b) with its residual, dropped for the next map; of the last map all columns."""
    tiles = tl.cdiv(width, COLUMNS)
    first = tl.program_id(0) % tiles * COLUMNS
    position = first + tl.arange(0, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    n = filled_up(tl.load(count))
    m = width
    if HAS_NEXT:
        m = tl.load(count + 1)
        if first >= m:
            return
    own = row < labels
    filled = filled_up(m)
    k = tl.arange(0, INNER)
    X_at = X + row.to(tl.int64)[:, None] * width + k[None, :]
    U_at = U + position[None, :] * width + k[:, None]
    p = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, n, INNER):
        valid = k < n - start
        x = tl.load(X_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled)[None, :], other=0.0)
        p = tl.dot(x, u, p, input_precision="ieee")
        X_at += INNER
        U_at += INNER
    for half in tl.static_range(2):
        _end_of_map(
            half_of(p, half),
            b,
            E,
            mask_next,
            P,
            X_next,
            Y,
            order,
            row,
            first + half * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2),
            m,
            labels,
            rows,
            width,
            ACTIVATION,
            HAS_BIAS,
            KEEP,
            HAS_NEXT,
            RESIDUAL,
        )


@triton.jit
def half_of(tile, index: tl.constexpr):
    """Left or right columns of a tile: what follows a product is done for one after the other.

    At once it would take twice the registers, and half as many programs would run side by side.
    """
    HALF: tl.constexpr = tile.shape[1] // 2
    halves = tl.permute(tl.reshape(tile, (tile.shape[0], 2, HALF)), (0, 2, 1))
    left, right = tl.split(halves)
    if index == 0:
        return left
    else:
        return right


@triton.jit
def _end_of_map(
    p,
    b,
    E,
    mask_next,
    P,
    X_next,
    Y,
    order,
    row,
    position,
    m,
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """All of ``map_labels`` that follows its product."""
    column = position
    if HAS_NEXT:
        column = tl.load(order + position, mask=position < m, other=width)
    own = row < labels
    line = row.to(tl.int64)[:, None] * width
    at = line + position[None, :]
    computed = (position < filled_up(m))[None, :]
    stored = own[:, None] & computed
    if HAS_BIAS:
        p += tl.load(b + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if KEEP:
        tl.store(P + at, p.to(P.dtype.element_ty), mask=stored)
    y = activate(p, ACTIVATION)
    if RESIDUAL:
        if HAS_NEXT:
            y += tl.load(X_next + at, mask=stored, other=0.0).to(tl.float32)
        else:
            y += tl.load(E + at, mask=stored, other=0.0).to(tl.float32)
    # The rows behind the labels are zeros: the loss and the sum over labels read them too.
    y = tl.where(own[:, None], y, 0.0)
    room = (row < rows)[:, None] & computed
    if HAS_NEXT:
        mask = tl.load(mask_next + column, mask=column < width, other=0.0).to(tl.float32)
        tl.store(X_next + at, (y * mask[None, :]).to(X_next.dtype.element_ty), mask=room)
    else:
        tl.store(Y + at, y.to(Y.dtype.element_ty), mask=room)
