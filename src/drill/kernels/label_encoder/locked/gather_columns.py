"""Kernels of ``locked_encode`` that leave out what locked masks drop.

Shapes: V labels, d width, L maps; rows >= V as the loss wants them, those beyond V zeros. A map
reads n of the d columns of its input and gives m of the d columns of its result, the last map d.

A locked mask on the inputs drops the same columns for every label. What a map does not read
need not be computed by the map below, nor get a gradient, so each map becomes a product of
(V, n) with (n, m), where m is what the next map reads. The columns that are read stand first:
``position`` (d,) is where a column stands, ``order`` (d,) which column stands there, and ``count``
(n, m) how many are read. Only the device knows n: programs beyond it end at once. Columns up to the
next multiple of 16 are zeros, which keeps loads aligned. Rows of ``count`` have room for four
numbers, 16 bytes: were they narrower, Triton would compile the kernels of a map twice, for rows
that are aligned and rows that are not.
"""

import triton
import triton.language as tl

COLUMNS = 64  # of a tile, of ``scatter_gradients`` too
_COLUMNS = tl.constexpr(COLUMNS)
_ALIGNED = tl.constexpr(16)  # what Triton asks of a size before it trusts it to be a multiple


@triton.jit
def filled_up(count):
    return (count + (_ALIGNED - 1)) // _ALIGNED * _ALIGNED


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """With OVERLAP programs start while those of the launch before end: here they wait for it.

    Afterwards all it wrote is there. From then on the programs of the launch after may come.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def arrange(
    masks,  # (L, 1, d)
    biases,  # L x (d,)
    position,  # (L + 1, d) written
    order,  # (L + 1, d) written
    count,  # (L, 4): n, m and room; written
    mask_narrow,  # (L, d) written: the masks in the order of their columns
    b_narrow,  # (L, d) written: of what a map gives; 0 for what nobody reads
    width,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Where the columns stand that one map reads, and at DEPTH those of the result: all."""
    begin(OVERLAP)
    layer = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    masked = tl.where(layer < DEPTH, width, 0)
    mask = tl.load(masks + layer * width + column, mask=column < masked, other=1.0)
    read = ((column < width) & (mask != 0)).to(tl.int32)
    n = tl.sum(read, 0)
    before = tl.cumsum(read, 0) - read
    at = tl.where(read != 0, before, n + column - before)
    tl.store(position + layer * width + column, at, mask=column < width)
    tl.store(order + layer * width + at, column, mask=column < width)
    if layer < DEPTH:
        tl.store(count + layer * 4, n)
        tl.store(mask_narrow + layer * width + at, mask, mask=column < width)
    if layer > 0:
        tl.store(count + (layer - 1) * 4 + 1, n)
    for below in tl.static_range(DEPTH):
        if layer == below + 1:
            b = tl.load(biases[below] + column, mask=read != 0, other=0.0)
            tl.store(b_narrow + below * width + at, b.to(tl.float32), mask=column < width)


@triton.jit
def narrow(
    E,  # (V, d)
    mask,  # (d,) of the first map, in the order of its columns
    weights,  # L x (d, d)
    X,  # (L, rows, d) what the first map multiplies, and what the others add
    U_narrow,  # (L, d, d) written
    order,  # (L + 1, d)
    count,  # (L, 4)
    labels,
    width,
    plane,
    U_programs,  # per map; those beyond DEPTH times as many serve E
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """E and all U with the columns and rows that are read in front.

    Programs stand where they write, so that scattered are the reads, which caches serve, and not
    the writes. Tiles are flat here and in ``finish``, so that the threads of a warp stand side by
    side in a row: for two dimensions Triton decides that by what it knows of addresses, here
    nothing.
    """
    begin(OVERLAP)
    program = tl.program_id(0)
    if program < DEPTH * U_programs:
        block = program % U_programs
        for layer in tl.static_range(DEPTH):
            if program // U_programs == layer:
                start = layer * tl.cast(width, tl.int64) * width
                _narrow_map(
                    weights[layer],
                    U_narrow + start,
                    order + layer * width,
                    count + layer * 4,
                    block,
                    width,
                    ROWS,
                )
    else:
        # The maps of the same labels follow one another: they read the same rows of E.
        index = program - DEPTH * U_programs
        layer = index % DEPTH
        _narrow_labels(E, mask, X, order, count, index // DEPTH, layer, labels, width, plane, ROWS)


@triton.jit
def _narrow_map(U, U_narrow, order, count, block, width, ROWS: tl.constexpr):
    row, column = flat_tile(block, tl.cdiv(width, _COLUMNS), ROWS)
    n = tl.load(count)
    m = tl.load(count + 1)
    # Not up to n, of which nothing is known: then these loads would not be wide.
    column_of = tl.load(order + column, mask=column < width, other=0)
    row_of = tl.load(order + width + row, mask=row < width, other=0)
    u = tl.load(U + row_of * width + column_of, mask=(row < m) & (column < n), other=0.0)
    tl.store(
        U_narrow + row * width + column,
        u.to(U_narrow.dtype.element_ty),
        mask=(row < filled_up(m)) & (column < filled_up(n)),
    )


@triton.jit
def flat_tile(block, tiles, ROWS: tl.constexpr):
    """Row and column of each entry of a tile, one row after the other."""
    index = tl.arange(0, ROWS * _COLUMNS)
    return block // tiles * ROWS + index // _COLUMNS, block % tiles * _COLUMNS + index % _COLUMNS


@triton.jit
def _narrow_labels(
    E,
    mask,
    X,
    order,
    count,
    block,
    layer,
    labels,
    width,
    plane,
    ROWS: tl.constexpr,
):
    """All columns of some rows: a program for each strip of them would mostly find none."""
    n = tl.load(count + layer * 4)
    row, column = flat_tile(block, 1, ROWS)
    line = row.to(tl.int64) * width
    own = row < labels
    for _ in range(0, n, _COLUMNS):
        read = column < n
        column_of = tl.load(order + layer * width + column, mask=column < width, other=0)
        x = tl.load(E + line + column_of, mask=own & read, other=0.0).to(tl.float32)
        if layer == 0:
            x *= tl.load(mask + column, mask=read, other=0.0)
        tl.store(
            X + layer.to(tl.int64) * plane + line + column,
            x.to(X.dtype.element_ty),
            mask=own & (column < filled_up(n)),
        )
        column += _COLUMNS
