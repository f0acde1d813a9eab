"""Forward and backward of the label encoder under locked dropout of its inputs, all in Triton.

One kernel per map forward and one backward; what lies between two products happens where a product
is still in registers, and what the masks drop is left out: at dropout 0.6 a map multiplies 160
columns instead of 400 by 160 instead of 400, in the last map by all 400. See
``label_encoder_products`` for how.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from drill.kernels.label_encoder_gradients import (
    finish,
    map_gradient,
    start_gradient,
    sum_over_labels,
)
from drill.kernels.label_encoder_options import Options
from drill.kernels.label_encoder_products import arrange, map_labels, narrow
from drill.kernels.label_encoder_steps import masks_of_maps
from drill.kernels.nll import require_plain_backward
from drill.kernels.nll_plan import aligned, without_padding


class Tiles(NamedTuple):
    """Tile of a product: rows x columns of its result, in steps of ``inner``."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


MAP = Tiles(64, 64, 64, warps=4, stages=2)
GRADIENT = Tiles(64, 64, 32, warps=4, stages=4)
SUM = Tiles(64, 64, 64, warps=4, stages=3)

SUM_PROGRAMS = 1024
"""Programs wanted for the gradients of all U, most of which find that they have nothing to do: the
sum over labels is cut until there are as many."""
_MOST_SPLITS = 8

_ROWS, _COLUMNS = 32, 64
"""Tile of the kernels that multiply nothing."""


class FusedEncode(torch.autograd.Function):
    """(embedding, masks, dtype, options, depth, keep, *weights, *biases) -> labels (V, d)."""

    @staticmethod
    def forward(
        ctx: Any,
        embedding: Tensor,
        masks: Tensor,
        dtype: torch.dtype,
        options: Options,
        depth: int,
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        E = embedding.contiguous()
        V, d = E.shape
        rows = aligned(V, E.device.type)
        whole = tuple(p.contiguous() for p in parameters)
        weights, biases = whole[:depth], whole[depth:]
        X = E.new_empty((depth, rows, d), dtype=dtype)
        place, order, count, U = _narrowed(E, masks, weights, X, options.residual)
        P = E.new_empty((depth if keep else 0, V, d), dtype=dtype)
        Y = E.new_empty((rows, d), dtype=dtype)
        grid = (triton.cdiv(rows, MAP.rows) * triton.cdiv(d, MAP.columns),)
        drop = masks_of_maps(masks, options, depth)
        inputs, products = (*X.unbind(), None), P.unbind() if keep else (None,) * depth
        orders = (*order.unbind(), None)
        for i in range(depth):
            map_labels[grid](
                inputs[i],
                U[i],
                biases[i] if biases else None,
                E,
                drop[i + 1],
                products[i],
                inputs[i + 1],
                Y,
                count[i],
                orders[i + 1],
                V,
                rows,
                d,
                ACTIVATION=options.activation,
                HAS_BIAS=bool(biases),
                KEEP=keep,
                HAS_NEXT=i < depth - 1,
                RESIDUAL=options.residual,
                ROWS=MAP.rows,
                COLUMNS=MAP.columns,
                INNER=MAP.inner,
                num_warps=MAP.warps,
                num_stages=MAP.stages,
            )
        ctx.save_for_backward(masks, X, P, place, order, count, *U)
        ctx.has_bias = bool(biases)
        ctx.options = options
        ctx.dtypes = (embedding.dtype, parameters[0].dtype, parameters[-1].dtype)
        return without_padding(Y, V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("DeepResidual", grad, 'encoder="reference"')
        masks, X, P, place, order, count, *U = ctx.saved_tensors
        options: Options = ctx.options
        depth, V, d = P.shape
        rows = X.shape[1]
        dY = grad.contiguous()
        dP = X.new_empty((depth, rows, d))
        dX = X.new_empty((depth if options.residual else 1, V, d))  # of the first map at least
        dE = dY.new_empty((V, d), dtype=ctx.dtypes[0])
        row_blocks = triton.cdiv(rows, GRADIENT.rows)
        sums = dY.new_empty((depth, row_blocks, d), dtype=torch.float32) if ctx.has_bias else None
        products, gradients = P.unbind(), dP.unbind()
        blocks = (None,) * depth if sums is None else sums.unbind()
        strips = triton.cdiv(d, _COLUMNS)
        start_gradient[(row_blocks * strips,)](
            dY,
            products[-1],
            gradients[-1],
            blocks[-1],
            V,
            rows,
            d,
            ACTIVATION=options.activation,
            HAS_BIAS=ctx.has_bias,
            ROWS=GRADIENT.rows,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        grid = (row_blocks * triton.cdiv(d, GRADIENT.columns),)
        for i in reversed(range(depth)):
            below = i > 0
            map_gradient[grid](
                gradients[i],
                U[i],
                masks[i],
                products[i - 1] if below else None,
                dX[i if options.residual else 0],
                gradients[i - 1] if below else None,
                blocks[i - 1] if below else None,
                count[i],
                order[i],
                V,
                rows,
                d,
                ACTIVATION=options.activation,
                HAS_BIAS=ctx.has_bias,
                KEEP=options.residual or not below,
                HAS_BELOW=below,
                ROWS=GRADIENT.rows,
                COLUMNS=GRADIENT.columns,
                INNER=GRADIENT.inner,
                num_warps=GRADIENT.warps,
                num_stages=GRADIENT.stages,
            )
        partial = _sums(dP, X, count, V)
        dU = dY.new_empty((depth, d, d), dtype=ctx.dtypes[1])
        db = dY.new_empty((depth, d), dtype=ctx.dtypes[2]) if ctx.has_bias else None
        U_programs = triton.cdiv(d, _ROWS) * strips
        E_programs = triton.cdiv(V, _ROWS) * strips
        finish[(depth * U_programs + E_programs,)](
            partial,
            sums,
            dY,
            dX,
            dU,
            db,
            dE,
            place,
            count,
            V,
            d,
            V * d,
            partial.shape[1],
            row_blocks,
            U_programs,
            DEPTH=depth,
            HAS_BIAS=ctx.has_bias,
            RESIDUAL=options.residual,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        of_biases = () if db is None else db.unbind()
        return dE, None, None, None, None, None, *dU.unbind(), *of_biases


def _sums(dP: Tensor, X: Tensor, count: Tensor, V: int) -> Tensor:  # (L, splits, d, d)
    """dP^T X of all maps, of the columns that are read, in float32 and in parts."""
    depth, rows, d = dP.shape
    tiles = triton.cdiv(d, SUM.rows) * triton.cdiv(d, SUM.columns)
    wanted = min(max(SUM_PROGRAMS // (depth * tiles), 1), _MOST_SPLITS)
    labels_per_split = triton.cdiv(triton.cdiv(V, SUM.inner), wanted) * SUM.inner
    splits = triton.cdiv(V, labels_per_split)
    partial = dP.new_empty((depth, splits, d, d), dtype=torch.float32)
    sum_over_labels[(tiles, splits, depth)](
        dP,
        X,
        partial,
        count,
        V,
        d,
        rows * d,
        splits,
        labels_per_split,
        ROWS=SUM.rows,
        COLUMNS=SUM.columns,
        INNER=SUM.inner,
        num_warps=SUM.warps,
        num_stages=SUM.stages,
    )
    return partial


def _narrowed(
    E: Tensor, masks: Tensor, weights: tuple[Tensor, ...], X: Tensor, residual: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Place, order and count of the columns that are read, and all U without the others.

    Fills X with these columns of E.
    """
    depth, (V, d) = len(weights), E.shape
    U = X.new_empty((depth, d, d))
    place, order = E.new_empty((2, depth + 1, d), dtype=torch.int32)
    count = E.new_empty((depth, 4), dtype=torch.int32)
    arrange[(depth + 1,)](
        masks,
        place,
        order,
        count,
        d,
        DEPTH=depth,
        BLOCK=triton.next_power_of_2(d),
        num_warps=4,
    )
    strips = triton.cdiv(d, _COLUMNS)
    U_programs = triton.cdiv(d, _ROWS) * strips
    E_programs = triton.cdiv(V, _ROWS) * strips * (depth if residual else 1)
    narrow[(depth * U_programs + E_programs,)](
        E,
        masks,
        torch.stack(weights),
        X,
        U,
        order,
        count,
        V,
        d,
        X.stride(0),
        U_programs,
        DEPTH=depth,
        RESIDUAL=residual,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
    return place, order, count, U.unbind()
