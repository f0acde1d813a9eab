"""Forward and backward of the label encoder: cuBLAS products, everything between them fused.

Per product one pointwise pass forward, the same backward. A map has one product, and with a second
matrix W two: act(X U + b), and that times W. The gradients of all U and W come from one batched
product, and those of all b with them: what is multiplied carries a column of ones. See
``encode_labels``.

Shapes: V labels, d width, L products; X has d' > d columns, so that its rows stay aligned.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.label_encoder.options import Options
from drill.kernels.label_encoder.pointwise_triton import (
    activate,
    inverse_rms,
    mask_at,
    norm_gradient,
    slope,
)
from drill.kernels.label_encoder.weight_gradients import EXTRA, sum_over_labels
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.padding import aligned, without_padding

_ROWS, _COLUMNS = 64, 64


def _tile(width: int, norm: bool) -> tuple[int, int, int]:
    """Rows and columns of the tile of a program, and its warps; a norm needs whole rows."""
    if not norm:
        return _ROWS, _COLUMNS, 4
    columns: int = triton.next_power_of_2(width)
    return max(1, _ROWS * _COLUMNS // columns), columns, 8 if columns <= 4096 else 16


@triton.jit
def _forward_map(
    P,  # (V, d) product of this map, with its bias; unused when ENTER
    E,  # (V, d)
    mask_out,  # of this map, see ``mask_at``
    mask_in,  # of the next map
    gate,  # (V,) factors of the last map, for GATED
    X,  # (V, d') what the next map multiplies, and the columns of ones, written
    Y,  # (V, d) the result of the last map, written unless HAS_NEXT
    labels,
    width,
    X_stride,
    scale,
    ENTER: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_OUT: tl.constexpr,
    HAS_IN: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    NORM: tl.constexpr,
    LOCKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """act(P), dropped and with its residuals; with ENTER just E, as the first map reads it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    if ENTER:
        y = tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
    else:
        y = tl.load(P + at, mask=inside, other=0.0).to(tl.float32)
        y = activate(y, ACTIVATION)
        if HAS_OUT:
            y *= mask_at(mask_out, row, column, inside, width, scale, LOCKED)
        if GATED:
            y *= tl.load(gate + row, mask=row < labels, other=0.0)[:, None]
        if RESIDUAL:
            y += tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_NEXT:
        if NORM:
            y = tl.where(inside, y, 0.0)
            y *= inverse_rms(y, width)
        if HAS_IN:
            y *= mask_at(mask_in, row, column, inside, width, scale, LOCKED)
        y = tl.where((column < width)[None, :], y, 1.0)
        tl.store(
            X + row.to(tl.int64)[:, None] * X_stride + column[None, :],
            y.to(X.dtype.element_ty),
            mask=(row < labels)[:, None] & (column < X_stride)[None, :],
        )
    else:
        tl.store(Y + at, y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _backward_map(
    above,  # (V, d) gradient that reaches this map's result, before mask_in; with NORM, after
    mask_in,  # of the next map, which ``above`` still has to pass
    mask_out,  # of this map
    P,  # (V, d)
    E,  # (V, d), for NORM
    gate,  # (V,) factors of the last map, for GATED
    dP,  # (V, d) written
    labels,
    width,
    scale,
    TOP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_OUT: tl.constexpr,
    HAS_IN: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    NORM: tl.constexpr,
    LOCKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of the map's product from that of its result."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    g = tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
    x = g
    if ACTIVATION != 0 or NORM:
        x = tl.load(P + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_IN:
        g *= mask_at(mask_in, row, column, inside, width, scale, LOCKED)
    if NORM and not TOP:  # the next map has read y / rms(y)
        y = activate(x, ACTIVATION)
        if HAS_OUT:
            y *= mask_at(mask_out, row, column, inside, width, scale, LOCKED)
        if RESIDUAL:
            y += tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
        g = norm_gradient(g, tl.where(inside, y, 0.0), width)
        tl.store(above + at, g.to(above.dtype.element_ty), mask=inside)
    if GATED:
        g *= tl.load(gate + row, mask=row < labels, other=0.0)[:, None]
    if HAS_OUT:
        g *= mask_at(mask_out, row, column, inside, width, scale, LOCKED)
    p = g * slope(x, ACTIVATION)
    tl.store(dP + at, p.to(dP.dtype.element_ty), mask=inside)


@triton.jit
def _embedding_gradient(
    dY,  # (V, d)
    dX,  # gradients of the maps' inputs as multiplied, ``plane`` apart; with NORM, of results below
    E,  # (V, d), for NORM
    masks,  # of all maps, ``mask_layer`` apart
    dE,  # (V, d) written
    labels,
    width,
    plane,
    mask_layer,
    scale,
    DEPTH: tl.constexpr,
    HAS_IN: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    LOCKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sum of what reaches E: through the first map and, with residuals, from every result.

    The gradient of result i is dY, plus dX of the next map.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < labels)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if RESIDUAL:
        total = tl.load(dY + at, mask=inside, other=0.0).to(tl.float32)
    for layer in tl.static_range(DEPTH):
        if RESIDUAL or layer == 0:
            g = tl.load(dX + layer * tl.cast(plane, tl.int64) + at, mask=inside, other=0.0)
            g = g.to(tl.float32)
            if HAS_IN and (layer == 0 or not NORM):
                own = masks + layer * tl.cast(mask_layer, tl.int64)
                g *= mask_at(own, row, column, inside, width, scale, LOCKED)
            if NORM and layer == 0:
                e = tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
                g = norm_gradient(g, e, width)
            total += g
    tl.store(dE + at, total.to(dE.dtype.element_ty), mask=inside)


class PointwiseEncode(torch.autograd.Function):
    """(embedding, masks, dtype, options, products, keep, *weights, *biases[, gate]) -> (V, d).

    With ``options.mlp`` U and W of each map follow one another in ``weights``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        embedding: Tensor,
        masks: Tensor | None,
        dtype: torch.dtype,
        options: Options,
        products: int,
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        E = embedding.contiguous()
        V, d = E.shape
        gate = parameters[-1].float().contiguous() if options.gated else None
        weights = parameters[:products]
        biases = parameters[products : -1 if options.gated else None]
        U = torch.stack(weights).to(dtype)
        b = torch.stack(biases).to(dtype) if biases else None
        planes = products if keep else 1  # without gradients each may overwrite the one before
        X = E.new_empty((planes, V, d + EXTRA), dtype=dtype)
        P = E.new_empty((planes, V, d), dtype=dtype)
        Y = E.new_empty((aligned(V, E.device.type), d), dtype=dtype)
        Y[V:] = 0
        for i in range(-1, products if V else -1):
            each = _Pass(i, products, options)
            if i >= 0:
                operands, out = (X[i % planes, :, :d], U[i].t()), P[i % planes]
                if b is not None and each.first:
                    torch.addmm(b[each.map], *operands, out=out)  # rounded once
                else:
                    torch.mm(*operands, out=out)
            rows, columns, warps = _tile(d + EXTRA, each.norm_above)
            _forward_map[triton.cdiv(V, rows), triton.cdiv(d + EXTRA, columns)](
                None if i < 0 else P[i % planes],
                E,
                _mask(masks, each.map, each.mask_out),
                _mask(masks, each.map + 1, each.mask_above),
                gate,
                None if each.top else X[(i + 1) % planes],
                Y,
                V,
                d,
                d + EXTRA,
                options.scale,
                ENTER=i < 0,
                ACTIVATION=each.activation,
                HAS_OUT=each.mask_out,
                HAS_IN=each.mask_above,
                HAS_NEXT=not each.top,
                RESIDUAL=options.residual and each.last,
                GATED=options.gated and each.top,
                NORM=each.norm_above,
                LOCKED=options.locked,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=warps,
            )
        ctx.save_for_backward(masks, U, X, P, E if options.norm else None, gate)
        ctx.has_bias = b is not None
        ctx.options = options
        ctx.dtypes = (embedding.dtype, weights[0].dtype, (biases or weights)[0].dtype)
        return without_padding(Y, V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("DeepResidual", grad)
        masks, U, X, P, E, gate = ctx.saved_tensors
        options: Options = ctx.options
        products, V, d = P.shape
        step = 2 if options.mlp else 1
        dY = grad.contiguous()
        dP, dX = torch.empty_like(P), torch.empty_like(P)
        dE = dY.new_empty((V, d), dtype=ctx.dtypes[0])
        for i in reversed(range(products if V else 0)):
            each = _Pass(i, products, options)
            rows, columns, warps = _tile(d, each.norm_above)
            _backward_map[triton.cdiv(V, rows), triton.cdiv(d, columns)](
                dY if each.top else dX[i + 1],
                _mask(masks, each.map + 1, each.mask_above),
                _mask(masks, each.map, each.mask_out),
                P[i],
                E,
                gate,
                dP[i],
                V,
                d,
                options.scale,
                TOP=each.top,
                ACTIVATION=each.activation,
                HAS_OUT=each.mask_out,
                HAS_IN=each.mask_above,
                RESIDUAL=options.residual,
                GATED=options.gated and each.top,
                NORM=each.norm_above,
                LOCKED=options.locked,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=warps,
            )
            torch.mm(dP[i], U[i], out=dX[i])
        if V:
            rows, columns, warps = _tile(d, options.norm)
            _embedding_gradient[triton.cdiv(V, rows), triton.cdiv(d, columns)](
                dY,
                dX,
                E,
                masks,
                dE,
                V,
                d,
                P.stride(0) * step,
                0 if masks is None else masks.stride(0),
                options.scale,
                DEPTH=products // step,
                HAS_IN=options.mask_in,
                RESIDUAL=options.residual,
                NORM=options.norm,
                LOCKED=options.locked,
                ROWS=rows,
                COLUMNS=columns,
                num_warps=warps,
            )
        sums = sum_over_labels(dP, X)  # (L, d, d')
        dU = sums[:, :, :d].to(ctx.dtypes[1]).contiguous().unbind()
        db = sums[::step, :, d].to(ctx.dtypes[2]).contiguous().unbind() if ctx.has_bias else ()
        return dE, None, None, None, None, None, *dU, *db, *([None] if options.gated else [])


class _Pass:
    """What follows product i; nothing, and E enters the first map, at -1."""

    def __init__(self, i: int, products: int, options: Options) -> None:
        step = 2 if options.mlp else 1
        self.map = i // step
        self.first = i % step == 0  # the product with U
        self.last = i % step == step - 1  # the product that ends the map
        self.top = i == products - 1
        self.activation = options.activation if self.first else 0
        self.mask_out = options.mask_out and self.last and i >= 0
        self.mask_above = options.mask_in and self.last and not self.top
        self.norm_above = options.norm and self.last and not self.top


def _mask(masks: Tensor | None, i: int, drops: bool) -> Tensor | None:
    return masks[i] if masks is not None and drops else None
