"""Forward and backward of the label encoder, its products and all between them in Triton.

One kernel per map forward and one backward; what lies between two products happens where a product
is still in registers. With locked dropout on the inputs the kernels leave out what the masks drop:
at dropout 0.6 a map multiplies 160 columns instead of 400 by 160 instead of 400, in the last map by
all 400. See ``label_encoder_products`` for how.
"""

import math
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
from drill.kernels.label_encoder_products import arrange, enter, map_labels, narrow
from drill.kernels.label_encoder_steps import (
    ACTIVATION_CODES,
    Options,
    drops_columns,
    masks_of_maps,
)
from drill.kernels.nll import require_plain_backward
from drill.kernels.nll_plan import aligned, without_padding


class Tiles(NamedTuple):
    """Tile of a product: rows x columns of its result, in steps of ``inner``."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


SMALL_MAP = Tiles(64, 64, 64, warps=4, stages=2)
SMALL_GRADIENT = Tiles(64, 64, 32, warps=4, stages=4)
LARGE_MAP = Tiles(128, 128, 64, warps=8, stages=3)
LARGE_GRADIENT = Tiles(128, 128, 64, warps=8, stages=3)
LARGE_TILES = 528
"""Large tiles read less from the cache, but leave a GPU of 132 multiprocessors idle where there are
fewer than four for each; narrow maps always have too few."""
SUM = Tiles(64, 64, 64, warps=4, stages=3)  # of narrow maps

SUM_PROGRAMS = 1024
"""Programs wanted for the gradients of narrow U, most of which find that they have nothing to do:
the sum over labels is cut until there are as many."""
_MOST_SPLITS = 8
PRODUCT_SPLITS = 4
"""Parts of the sum over labels in cuBLAS's product for the gradients of U: four maps of 400 x 400
alone are too few tiles for a GPU."""

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
        rows = aligned(V, E.device.type)
        whole = tuple(p.contiguous() for p in parameters)
        weights, biases = whole[:depth], whole[depth:]
        is_narrow = drops_columns(options)
        # The first map multiplies E itself if that needs neither another dtype nor a mask. Without
        # gradients two planes serve all maps but the first, unless each is filled beforehand.
        shared = int(E.dtype == dtype and not options.mask_in)
        stays = keep or is_narrow
        planes = (depth if stays else min(depth, 3)) - shared
        X = E.new_empty((planes, rows, d), dtype=dtype)
        own = X.unbind()
        others = range(1, depth) if stays else [1 + (i - 1) % 2 for i in range(1, depth)]
        inputs = [E if shared else own[0], *(own[i - shared] for i in others)]
        added = E
        place = order = count = None
        if is_narrow:
            assert masks is not None
            place, order, count, U = _narrowed(E, masks, weights, X, options.residual)
        else:
            U = weights
            if U[0].dtype != dtype:
                U = torch.stack(weights).to(dtype).unbind()
            if not shared:
                added = _enter(E, masks, options, own[0])
        gates = options.activation == ACTIVATION_CODES["relu"]
        kept = torch.uint8 if gates else dtype
        P = E.new_empty((depth if keep else 0, V, d), dtype=kept)
        Y = E.new_empty((rows, d), dtype=dtype)
        before = [E.new_empty((rows, d)) for _ in range(2 if options.between else 0)]
        tiles = _tiles(V, d, is_narrow)[0]
        grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(d, tiles.columns),)
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
                added,
                drop[i] if options.mask_out else None,
                drop[i + 1] if options.mask_in else None,
                before[(i - 1) % 2] if between else None,
                products[i],
                None if last else inputs[i + 1],
                result,
                counts[i],
                orders[i + 1],
                V,
                rows,
                d,
                i,
                options.scale,
                ACTIVATION=options.activation,
                HAS_BIAS=bool(biases),
                HAS_OUT=options.mask_out,
                HAS_IN=options.mask_in,
                KEEP=keep,
                GATES=gates,
                HAS_NEXT=not last,
                HAS_RESULT=result is not None,
                RESIDUAL=options.residual,
                BETWEEN=between,
                LOCKED=options.locked,
                NARROW=is_narrow,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                INNER=tiles.inner,
                num_warps=tiles.warps,
                num_stages=tiles.stages,
            )
        ctx.save_for_backward(masks, E if shared else None, X, P, place, order, count, *U)
        ctx.has_bias = bool(biases)
        ctx.options = options
        ctx.dtypes = (embedding.dtype, parameters[0].dtype, parameters[-1].dtype)
        return without_padding(Y, V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("DeepResidual", grad, 'encoder="reference"')
        masks, E, X, P, place, order, count, *U = ctx.saved_tensors
        options: Options = ctx.options
        depth, V, d = P.shape
        rows = X.shape[1]
        is_narrow = place is not None
        gates = P.dtype == torch.uint8
        dY = grad.contiguous()
        dP = X.new_empty((depth, rows, d))
        dX = _inputs_gradients(X, V, depth, options.residual, is_narrow)
        dE = dY.new_empty((V, d), dtype=ctx.dtypes[0])
        G = dY.new_empty((V, d), dtype=torch.float32) if options.between else None
        tiles = _tiles(V, d, is_narrow)[1]
        row_blocks = triton.cdiv(rows, tiles.rows)
        sums = dY.new_empty((depth, row_blocks, d), dtype=torch.float32) if ctx.has_bias else None
        drop = masks_of_maps(masks, options, depth)
        counts, orders = _rows(count, depth), _rows(order, depth)
        products, gradients, blocks = P.unbind(), dP.unbind(), _rows(sums, depth)
        strips = triton.cdiv(d, _COLUMNS)
        start_gradient[(row_blocks * strips,)](
            dY,
            drop[depth - 1] if options.mask_out else None,
            products[-1],
            gradients[-1],
            blocks[depth - 1],
            V,
            rows,
            d,
            depth - 1,
            options.scale,
            ACTIVATION=options.activation,
            HAS_BIAS=ctx.has_bias,
            HAS_OUT=options.mask_out,
            GATES=gates,
            LOCKED=options.locked,
            ROWS=tiles.rows,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        grid = (row_blocks * triton.cdiv(d, tiles.columns),)
        for i in reversed(range(depth)):
            below = i > 0
            map_gradient[grid](
                gradients[i],
                U[i],
                drop[i] if options.mask_in else None,
                drop[i - 1] if options.mask_out and below else None,
                products[i - 1] if below else None,
                (dY if i == depth - 1 else G) if options.between and below else None,
                G if below else None,
                dX[i],
                gradients[i - 1] if below else None,
                blocks[i - 1] if below else None,
                None if below else dY,
                None if below else dE,
                counts[i],
                orders[i],
                V,
                rows,
                d,
                V * d,
                i - 1,
                options.scale,
                DEPTH=depth,
                ACTIVATION=options.activation,
                HAS_BIAS=ctx.has_bias,
                HAS_OUT=options.mask_out,
                HAS_IN=options.mask_in,
                KEEP=options.residual if below else is_narrow,
                GATES=gates,
                HAS_BELOW=below,
                RESIDUAL=options.residual,
                BETWEEN=options.between,
                LOCKED=options.locked,
                NARROW=is_narrow,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                INNER=tiles.inner,
                num_warps=tiles.warps,
                num_stages=tiles.stages,
            )
        partial = _narrow_sums(dP, X, count, V) if is_narrow else _sums(dP, X, E)
        dU = dY.new_empty((depth, d, d), dtype=ctx.dtypes[1])
        db = dY.new_empty((depth, d), dtype=ctx.dtypes[2]) if ctx.has_bias else None
        U_programs = triton.cdiv(d, _ROWS) * strips
        E_programs = triton.cdiv(V, _ROWS) * strips if is_narrow else 0
        finish[(depth * U_programs + E_programs,)](
            partial,
            sums,
            dY,
            dX[0],
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
            NARROW=is_narrow,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        of_biases = () if db is None else db.unbind()
        return dE, None, None, None, None, None, *dU.unbind(), *of_biases


def _tiles(V: int, d: int, is_narrow: bool) -> tuple[Tiles, Tiles]:
    """Those of the maps and of their gradients."""
    large = triton.cdiv(V, LARGE_MAP.rows) * triton.cdiv(d, LARGE_MAP.columns)
    if is_narrow or large < LARGE_TILES:
        return SMALL_MAP, SMALL_GRADIENT
    return LARGE_MAP, LARGE_GRADIENT


def _rows(stacked: Tensor | None, depth: int) -> tuple[Tensor | None, ...]:
    """One entry per map, and None where the map after the last one would be."""
    return (None,) * (depth + 1) if stacked is None else (*stacked.unbind(), None)


def _enter(E: Tensor, masks: Tensor | None, options: Options, X: Tensor) -> Tensor:
    """Writes what the first map multiplies; gives what residuals add: E in the dtype of X.

    Half of what float32 would have every map read again; its sums are rounded to that dtype anyway.
    """
    V, d = E.shape
    copied = options.residual and options.mask_in and E.dtype != X.dtype
    copy = X.new_empty((V, d)) if copied else None
    rows = X.shape[0]
    enter[(triton.cdiv(rows, _ROWS) * triton.cdiv(d, _COLUMNS),)](
        E,
        None if masks is None else masks[0],
        X,
        copy,
        V,
        rows,
        d,
        options.scale,
        HAS_IN=options.mask_in,
        HAS_COPY=copied,
        LOCKED=options.locked,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
    if copy is not None:
        return copy
    return E if options.mask_in else X


def _inputs_gradients(
    X: Tensor, V: int, depth: int, residual: bool, is_narrow: bool
) -> tuple[Tensor | None, ...]:
    """Where each map leaves the gradient of its input, and where the first map finds them all."""
    if is_narrow:
        dX = X.new_empty((depth if residual else 1, V, X.shape[2]))
        return (dX, *dX.unbind()[1:], *([None] * (0 if residual else depth - 1)))
    if not residual or depth == 1:
        return (None,) * depth
    dX = X.new_empty((depth - 1, V, X.shape[2]))
    return (dX, *dX.unbind())


def _sums(dP: Tensor, X: Tensor, E: Tensor | None) -> Tensor:  # (L, splits, d, d)
    """dP^T X of all maps, in float32 and in parts. E stands for the X that the first map lacks."""
    depth, rows, d = dP.shape
    V = rows if E is None else E.shape[0]
    splits = math.gcd(rows, PRODUCT_SPLITS) if E is None else 1
    partial = dP.new_empty((depth, splits, d, d), dtype=torch.float32)
    own = depth - X.shape[0]
    for i in range(own):
        assert E is not None
        _multiply(dP[i : i + 1, :V], E[None], partial[i])
    if own < depth:
        a = dP[own:].view(-1, rows // splits, d)
        _multiply(a, X.view(a.shape), partial[own:].view(-1, d, d))
    return partial


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a^T b of each pair, in float32."""
    if a.is_cuda and a.dtype != torch.float32:
        torch.bmm(a.transpose(1, 2), b, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(a.transpose(1, 2).float(), b.float(), out=out)


def _narrow_sums(dP: Tensor, X: Tensor, count: Tensor, V: int) -> Tensor:  # (L, splits, d, d)
    """The same where only the first columns count."""
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
