"""Kernel of ``locked_encode``, forward; shapes as in ``gather_columns``."""

import triton
import triton.language as tl

from drill.kernels.label_encoder.locked.gather_columns import begin, filled_up
from drill.kernels.label_encoder.pointwise_triton import activate

ROWS = COLUMNS = 64
"""Tile of a product: rows x columns of its result."""
WARPS = 4
_ROWS, _COLUMNS = tl.constexpr(ROWS), tl.constexpr(COLUMNS)
_INNER, _STAGES = tl.constexpr(64), tl.constexpr(3)


@triton.jit
def map_labels(
    X,  # (V, d) what this map multiplies
    U,  # (d, d)
    b,  # (d,) in the order of the result
    E,  # (V, d)
    mask_next,  # (d,) on the input of the next map, in its order
    P,  # (V, d) the product with its bias, written for backward
    X_next,  # (rows, d) what the next map multiplies, written; holds what is added to it
    Y,  # (rows, d) the labels, written by the last map
    count,
    labels,
    rows,
    width,
    ACTIVATION: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """act(X U^T + b) with its residual, dropped for the next map; of the last map all columns.

    Only the device knows how many programs that takes. The last of them find nothing to do.
    """
    begin(OVERLAP)
    n = filled_up(tl.load(count))
    m = width
    if HAS_NEXT:
        m = tl.load(count + 1)
    tiles = tl.maximum(tl.cdiv(m, _COLUMNS), 1)
    first_row = tl.program_id(0) // tiles * _ROWS
    if first_row >= rows:
        return
    row = first_row + tl.arange(0, _ROWS)
    first = tl.program_id(0) % tiles * _COLUMNS
    position = first + tl.arange(0, _COLUMNS)
    left = first + tl.arange(0, _COLUMNS // 2)
    right = left + _COLUMNS // 2
    own = row < labels
    filled = filled_up(m)
    # On their way from memory while the product is computed.
    before = X_next if HAS_NEXT else E
    added_left = _residual(before, row, left, own, filled, width)
    added_right = _residual(before, row, right, own, filled, width)
    p = tl.zeros((_ROWS, _COLUMNS), tl.float32)
    p += tl.load(b + position, mask=position < filled, other=0.0)[None, :]
    k = tl.arange(0, _INNER)
    X_at = X + row.to(tl.int64)[:, None] * width + k[None, :]
    U_at = U + position[None, :] * width + k[:, None]
    for start in tl.range(0, n, _INNER, num_stages=_STAGES):
        valid = k < n - start
        x = tl.load(X_at, mask=own[:, None] & valid[None, :], other=0.0)
        u = tl.load(U_at, mask=valid[:, None] & (position < filled)[None, :], other=0.0)
        p = tl.dot(x, u, p, input_precision="ieee")
        X_at += _INNER
        U_at += _INNER
    to = X_next if HAS_NEXT else Y
    halves, added, positions = halves_of(p), (added_left, added_right), (left, right)
    for side in tl.static_range(2):
        p, position = halves[side], positions[side]
        at = row.to(tl.int64)[:, None] * width + position[None, :]
        computed = (position < filled)[None, :]
        tl.store(P + at, p.to(P.dtype.element_ty), mask=own[:, None] & computed)
        y = activate(p, ACTIVATION) + added[side].to(tl.float32)
        if HAS_NEXT:
            y *= tl.load(mask_next + position, mask=position < filled, other=0.0)[None, :]
        # The rows behind the labels are zeros: the loss and the sum over labels read them too.
        y = tl.where(own[:, None], y, 0.0)
        tl.store(to + at, y.to(to.dtype.element_ty), mask=(row < rows)[:, None] & computed)


@triton.jit
def halves_of(tile):
    """Left and right columns of a tile: what follows a product is done for one after the other.

    At once it would take twice the registers, and half as many programs would run side by side.
    """
    HALF: tl.constexpr = tile.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(tile, (tile.shape[0], 2, HALF)), (0, 2, 1)))


@triton.jit
def _residual(before, row, position, own, filled, width):
    at = row.to(tl.int64)[:, None] * width + position[None, :]
    return tl.load(before + at, mask=own[:, None] & (position < filled)[None, :], other=0.0)
