"""Kernels of ``locked_encode``, backward; shapes as in ``gather_columns``."""

import triton
import triton.language as tl

from drill.kernels.label_encoder.locked.forward_triton import halves_of
from drill.kernels.label_encoder.locked.gather_columns import begin, filled_up
from drill.kernels.label_encoder.pointwise_triton import slope

ROWS = COLUMNS = 64
"""Tile of the product that passes gradients on: rows x columns of its result."""
SUM_ROWS = SUM_COLUMNS = SUM_INNER = 64
"""Tile of the sum over labels, which it takes in steps of ``SUM_INNER``."""
WARPS = 4
_ROWS, _COLUMNS = tl.constexpr(ROWS), tl.constexpr(COLUMNS)
_INNER, _STAGES = tl.constexpr(32), tl.constexpr(4)
_SUM_ROWS, _SUM_COLUMNS = tl.constexpr(SUM_ROWS), tl.constexpr(SUM_COLUMNS)
_SUM_INNER, _SUM_STAGES = tl.constexpr(SUM_INNER), tl.constexpr(3)


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
    OVERLAP: tl.constexpr,
):
    """Gradient of the last map's product from that of the labels."""
    begin(OVERLAP)
    tiles = tl.cdiv(width, _COLUMNS)
    row_block = tl.program_id(0) // tiles
    column = tl.program_id(0) % tiles * _COLUMNS + tl.arange(0, _COLUMNS)
    row = row_block * _ROWS + tl.arange(0, _ROWS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    g = tl.load(dY + at, mask=inside, other=0.0).to(tl.float32)
    g *= slope(tl.load(P + at, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    room = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(dP + at, g.to(dP.dtype.element_ty), mask=room)
    block = sums + row_block.to(tl.int64) * width
    tl.store(block + column, tl.sum(g, 0), mask=column < width)


@triton.jit
def map_gradient(
    dP,  # (rows, d) of this map
    U,  # (d, d)
    mask_in,  # (d,) of this map, in the order of its input
    P_below,  # (V, d)
    X,  # (rows, d) what this map multiplied
    dX,  # (V, d) gradient of what this map reads, written
    dP_below,  # (rows, d) written
    sums,  # (row blocks, d) sums of dP_below, written
    partial,  # (splits, d, d) float32: dP^T X of this map, in parts, written
    count,
    labels,
    rows,
    width,
    splits,
    labels_per_split,
    ACTIVATION: tl.constexpr,
    HAS_BELOW: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The two products with dP: past the mask and the activation below, and that with X.

    Neither fills the machine, so the programs of both stand side by side in one launch, first those
    of the sum over labels, which take longer. Those beyond what is read end at once.
    """
    begin(OVERLAP)
    n = tl.load(count)
    m = filled_up(tl.load(count + 1))
    across = tl.cdiv(n, _SUM_COLUMNS)
    summing = tl.cdiv(m, _SUM_ROWS) * across * splits
    program = tl.program_id(0)
    if program < summing:
        tile = program // splits
        _sum_over_labels(
            dP,
            X,
            partial,
            tile // across * _SUM_ROWS,
            tile % across * _SUM_COLUMNS,
            program % splits,
            m,
            filled_up(n),
            labels,
            width,
            labels_per_split,
        )
    else:
        tiles = tl.maximum(tl.cdiv(n, _COLUMNS), 1)
        block = (program - summing) // tiles
        if block * _ROWS < rows:
            _gradient_of_inputs(
                dP,
                U,
                mask_in,
                P_below,
                dX,
                dP_below,
                sums,
                block,
                (program - summing) % tiles * _COLUMNS,
                n,
                m,
                labels,
                rows,
                width,
                ACTIVATION,
                HAS_BELOW,
            )


@triton.jit
def _gradient_of_inputs(
    dP,
    U,
    mask_in,
    P_below,
    dX,
    dP_below,
    sums,
    row_block,
    first,
    n,
    m,
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_BELOW: tl.constexpr,
):
    """dP U, past the mask and the activation below: the gradient of the product below."""
    position = first + tl.arange(0, _COLUMNS)
    left = first + tl.arange(0, _COLUMNS // 2)
    right = left + _COLUMNS // 2
    row = row_block * _ROWS + tl.arange(0, _ROWS)
    own = row < labels
    filled = filled_up(n)
    # On their way from memory while the product is computed.
    P_left = _product_below(P_below, row, left, own, filled, width, HAS_BELOW)
    P_right = _product_below(P_below, row, right, own, filled, width, HAS_BELOW)
    k = tl.arange(0, _INNER)
    P_at = dP + row.to(tl.int64)[:, None] * width + k[None, :]
    U_at = U + k[:, None] * width + position[None, :]
    g = tl.zeros((_ROWS, _COLUMNS), tl.float32)
    for start in tl.range(0, m, _INNER, num_stages=_STAGES):
        valid = k < m - start
        p = tl.load(P_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled)[None, :], other=0.0)
        g = tl.dot(p, u, g, input_precision="ieee")
        P_at += _INNER
        U_at += _INNER * width
    block_sums = sums
    if HAS_BELOW:
        block_sums = sums + row_block.to(tl.int64) * width
    halves, products, positions = halves_of(g), (P_left, P_right), (left, right)
    for side in tl.static_range(2):
        g, position = halves[side], positions[side]
        at = row.to(tl.int64)[:, None] * width + position[None, :]
        computed = (position < filled)[None, :]
        g *= tl.load(mask_in + position, mask=position < filled, other=0.0)[None, :]
        tl.store(dX + at, g.to(dX.dtype.element_ty), mask=own[:, None] & computed)
        if HAS_BELOW:
            g *= slope(products[side].to(tl.float32), ACTIVATION)
            room = (row < rows)[:, None] & computed
            tl.store(dP_below + at, g.to(dP_below.dtype.element_ty), mask=room)
            tl.store(block_sums + position, tl.sum(g, 0), mask=position < filled)


@triton.jit
def _product_below(P_below, row, position, own, filled, width, HAS_BELOW: tl.constexpr):
    p = tl.zeros((row.shape[0], position.shape[0]), tl.float32)
    if HAS_BELOW:
        at = row.to(tl.int64)[:, None] * width + position[None, :]
        p = tl.load(P_below + at, mask=own[:, None] & (position < filled)[None, :], other=0.0)
    return p


@triton.jit
def _sum_over_labels(
    dP,
    X,
    partial,
    first_row,
    first_column,
    split,
    m,
    n,
    labels,
    width,
    labels_per_split,
):
    """A tile of dP^T X over one split of the labels."""
    row = first_row + tl.arange(0, _SUM_ROWS)
    column = first_column + tl.arange(0, _SUM_COLUMNS)
    start = split * labels_per_split
    stop = tl.minimum(labels, start + labels_per_split)
    k = tl.arange(0, _SUM_INNER)
    line = (start + k).to(tl.int64) * width
    P_at = dP + line[None, :] + row[:, None]
    X_at = X + line[:, None] + column[None, :]
    total = tl.zeros((_SUM_ROWS, _SUM_COLUMNS), tl.float32)
    for label in tl.range(start, stop, _SUM_INNER, num_stages=_SUM_STAGES):
        valid = k < stop - label
        p = tl.load(P_at, mask=(row < m)[:, None] & valid[None, :], other=0.0)
        x = tl.load(X_at, mask=valid[:, None] & (column < n)[None, :], other=0.0)
        total = tl.dot(p, x, total, input_precision="ieee")
        P_at += _SUM_INNER * width
        X_at += _SUM_INNER * width
    at = partial + split.to(tl.int64) * width * width
    at += row[:, None] * width + column[None, :]
    tl.store(at, total, mask=(row < m)[:, None] & (column < n)[None, :])
