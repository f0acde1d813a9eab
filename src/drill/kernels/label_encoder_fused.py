"""Forward and backward of the label encoder, its products and all between them in Triton.

One kernel per map forward and one backward; what lies between two products happens where a product
is still in registers. With locked dropout on the inputs the kernels leave out what the masks drop:
at dropout 0.6 a map multiplies 160 columns instead of 400 by 160 instead of 400, in the last map by
all 400. See ``label_encoder_products`` for how.
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
from drill.kernels.label_encoder_products import arrange, map_labels, narrow
from drill.kernels.label_encoder_steps import Options, drops_columns, masks_of_maps
from drill.kernels.nll import refuse_second_derivatives


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

SUM_PROGRAMS = 256
"""Programs wanted for the gradients of U: the sum over labels is cut until there are as many."""
NARROW_SUM_PROGRAMS = 1024
"""The same where most of them find that they have nothing to do."""
_MOST_SPLITS = 8

_ROWS, _COLUMNS = 32, 64
"""Tile of the kernels that multiply nothing."""


class FusedEncode(torch.autograd.Function):
    """(embedding, masks, dtype, options, depth, keep, *weights, *biases) -> labels (V, d)."""

    @staticmethod
    def forward(
        ctx: Any,
        embedding: Tensor,
        masks: Tensor | None,
        dtype: torch.dtype,
        options: Options,
        depth: int,
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        E = embedding.contiguous()
        V, d = E.shape
        whole = tuple(p.contiguous() for p in parameters)
        weights, biases = whole[:depth], whole[depth:]
        is_narrow = drops_columns(options)
        # The first map multiplies E itself if that needs neither another dtype nor a mask. Without
        # gradients two planes serve all maps, unless each is filled beforehand.
        shared = int(E.dtype == dtype and not options.mask_in)
        planes = depth - shared if keep or is_narrow else min(depth - shared, 2)
        X = E.new_empty((planes, V, d), dtype=dtype)
        own = X.unbind()
        inputs = [E] * shared + [own[i % planes] for i in range(depth - shared)]
        place = order = count = None
        if is_narrow:
            assert masks is not None
            place, order, count, U = _narrowed(E, masks, weights, X, options.residual)
        else:
            U = weights
            if U[0].dtype != dtype:
                U = torch.stack(weights).to(dtype).unbind()
            if not shared:
                _enter(E, masks, options, inputs[0])
        P = E.new_empty((depth if keep else 0, V, d), dtype=dtype)
        Y = torch.empty_like(E)
        before = [torch.empty_like(E) for _ in range(2 if options.between else 0)]
        grid = (triton.cdiv(V, MAP.rows) * triton.cdiv(d, MAP.columns),)
        drop = masks_of_maps(masks, options, depth)
        counts, orders = _rows(count, depth), _rows(order, depth)
        products = P.unbind() if keep else (None,) * depth
        for i in range(depth):
            last = i == depth - 1
            # With residuals between maps the results alternate between two buffers.
            result = Y if last else before[i % 2] if options.between else None
            between = options.between and i > 0
            map_labels[grid](
                inputs[i],
                U[i],
                biases[i] if biases else None,
                E,
                drop[i] if options.mask_out else None,
                drop[i + 1] if options.mask_in else None,
                before[(i - 1) % 2] if between else None,
                products[i],
                None if last else inputs[i + 1],
                result,
                counts[i],
                orders[i + 1],
                V,
                d,
                i,
                options.scale,
                ACTIVATION=options.activation,
                HAS_BIAS=bool(biases),
                HAS_OUT=options.mask_out,
                HAS_IN=options.mask_in,
                KEEP=keep,
                HAS_NEXT=not last,
                HAS_RESULT=result is not None,
                RESIDUAL=options.residual,
                BETWEEN=between,
                LOCKED=options.locked,
                NARROW=is_narrow,
                ROWS=MAP.rows,
                COLUMNS=MAP.columns,
                INNER=MAP.inner,
                num_warps=MAP.warps,
                num_stages=MAP.stages,
            )
        ctx.save_for_backward(masks, E if shared else None, X, P, place, order, count, *U)
        ctx.has_bias = bool(biases)
        ctx.options = options
        ctx.dtypes = (embedding.dtype, parameters[0].dtype, parameters[-1].dtype)
        return Y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("DeepResidual", 'encoder="reference"')
        masks, E, X, P, place, order, count, *U = ctx.saved_tensors
        options: Options = ctx.options
        depth, V, d = P.shape
        is_narrow = place is not None
        dY = grad.contiguous()
        dP = torch.empty_like(P)
        dX = P.new_empty((depth if options.residual else 1, V, d))
        G = dY.new_empty((V, d), dtype=torch.float32) if options.between else None
        row_blocks = triton.cdiv(V, GRADIENT.rows)
        sums = dY.new_empty((depth, row_blocks, d), dtype=torch.float32) if ctx.has_bias else None
        drop = masks_of_maps(masks, options, depth)
        counts, orders = _rows(count, depth), _rows(order, depth)
        products, gradients, blocks = P.unbind(), dP.unbind(), _rows(sums, depth)
        reached = dX.unbind()
        strips = triton.cdiv(d, _COLUMNS)
        start_gradient[(row_blocks * strips,)](
            dY,
            drop[depth - 1] if options.mask_out else None,
            products[-1],
            gradients[-1],
            blocks[depth - 1],
            V,
            d,
            depth - 1,
            options.scale,
            ACTIVATION=options.activation,
            HAS_BIAS=ctx.has_bias,
            HAS_OUT=options.mask_out,
            LOCKED=options.locked,
            ROWS=GRADIENT.rows,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        grid = (row_blocks * triton.cdiv(d, GRADIENT.columns),)
        for i in reversed(range(depth)):
            below = i > 0
            keep = options.residual or not below
            map_gradient[grid](
                gradients[i],
                U[i],
                drop[i] if options.mask_in else None,
                drop[i - 1] if options.mask_out and below else None,
                products[i - 1] if below else None,
                (dY if i == depth - 1 else G) if options.between and below else None,
                G if below else None,
                reached[i] if keep else None,
                gradients[i - 1] if below else None,
                blocks[i - 1] if below else None,
                counts[i],
                orders[i],
                V,
                d,
                i - 1,
                options.scale,
                ACTIVATION=options.activation,
                HAS_BIAS=ctx.has_bias,
                HAS_OUT=options.mask_out,
                HAS_IN=options.mask_in,
                KEEP=keep,
                HAS_BELOW=below,
                BETWEEN=options.between,
                LOCKED=options.locked,
                NARROW=is_narrow,
                ROWS=GRADIENT.rows,
                COLUMNS=GRADIENT.columns,
                INNER=GRADIENT.inner,
                num_warps=GRADIENT.warps,
                num_stages=GRADIENT.stages,
            )
        splits, labels_per_split = _splits(V, d, depth, is_narrow)
        partial = dY.new_empty((depth, splits, d, d), dtype=torch.float32)
        tiles = triton.cdiv(d, SUM.rows) * triton.cdiv(d, SUM.columns)
        sum_over_labels[(tiles, splits, depth)](
            dP,
            X if E is None else E,
            X[1:] if E is None else X,
            partial,
            count,
            V,
            d,
            V * d,
            splits,
            labels_per_split,
            NARROW=is_narrow,
            ROWS=SUM.rows,
            COLUMNS=SUM.columns,
            INNER=SUM.inner,
            num_warps=SUM.warps,
            num_stages=SUM.stages,
        )
        dE = dY.new_empty((V, d), dtype=ctx.dtypes[0])
        dU = dY.new_empty((depth, d, d), dtype=ctx.dtypes[1])
        db = dY.new_empty((depth, d), dtype=ctx.dtypes[2]) if ctx.has_bias else None
        U_programs = triton.cdiv(d, _ROWS) * strips
        finish[(depth * U_programs + triton.cdiv(V, _ROWS) * strips,)](
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
            splits,
            row_blocks,
            U_programs,
            DEPTH=depth,
            HAS_BIAS=ctx.has_bias,
            RESIDUAL=options.residual,
            BETWEEN=options.between,
            NARROW=is_narrow,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        of_biases = () if db is None else db.unbind()
        return dE, None, None, None, None, None, *dU.unbind(), *of_biases


def _rows(stacked: Tensor | None, depth: int) -> tuple[Tensor | None, ...]:
    """One entry per map, and None where the map after the last one would be."""
    return (None,) * (depth + 1) if stacked is None else (*stacked.unbind(), None)


def _enter(E: Tensor, masks: Tensor | None, options: Options, X: Tensor) -> None:
    """What the first map multiplies."""
    if masks is None or not options.mask_in:
        X.copy_(E)
    else:
        torch.mul(E, masks[0] if options.locked else (masks[0] & 1) * options.scale, out=X)


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
    narrow[(depth * U_programs + triton.cdiv(V, _ROWS) * strips,)](
        E,
        masks,
        torch.stack(weights),
        X,
        U,
        place,
        count,
        V,
        d,
        V * d,
        U_programs,
        DEPTH=depth,
        RESIDUAL=residual,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
    return place, order, count, U.unbind()


def _splits(V: int, d: int, depth: int, is_narrow: bool) -> tuple[int, int]:
    """Into how many parts the sum over labels is cut, and labels per part."""
    tiles = depth * triton.cdiv(d, SUM.rows) * triton.cdiv(d, SUM.columns)
    wanted = (NARROW_SUM_PROGRAMS if is_narrow else SUM_PROGRAMS) // tiles
    steps = triton.cdiv(V, SUM.inner)
    labels_per_split = triton.cdiv(steps, min(max(wanted, 1), _MOST_SPLITS)) * SUM.inner
    return triton.cdiv(V, labels_per_split), labels_per_split
