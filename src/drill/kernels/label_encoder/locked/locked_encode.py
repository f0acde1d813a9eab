"""Forward and backward of the label encoder under locked dropout of its inputs, all in Triton.

One kernel per map forward and one backward, which sums the gradient of its U too. What lies between
two products happens where a product is still in registers, and what the masks drop is left out: at
dropout 0.6 a map multiplies 160 columns instead of 400 by 160 instead of 400, in the last map by
all 400. See ``gather_columns`` for how.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from drill.kernels.label_encoder.locked import backward_triton, forward_triton
from drill.kernels.label_encoder.locked.backward_triton import map_gradient, start_gradient
from drill.kernels.label_encoder.locked.forward_triton import map_labels
from drill.kernels.label_encoder.locked.gather_columns import COLUMNS, arrange, narrow
from drill.kernels.label_encoder.locked.scatter_gradients import finish
from drill.kernels.label_encoder.options import Options
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.padding import aligned, without_padding

LABELS_PER_SPLIT = 768
"""Labels that a program of the gradients of U sums over: about as long as other programs."""
MOST_SPLITS = 16

_ROWS = 32
"""Rows of a tile of the kernels that multiply nothing."""
_U_ROWS = 8
"""Rows of it where parts of U's gradient are summed: a thread loads all parts at once."""


class LockedEncode(torch.autograd.Function):
    """(embedding, masks, dtype, options, depth, keep, *weights, *biases) -> labels (V, d).

    What backward needs is written whether it is to ``keep`` it or not: masks are for training.
    """

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
        weights, biases = whole[:depth], whole[depth:] or (E.new_zeros(d),) * depth
        X = E.new_empty((depth, rows, d), dtype=dtype)
        launch = overlapping(E)
        position, count, mask, b, U = _narrowed(E, masks, weights, biases, X, launch)
        P = E.new_empty((depth, V, d), dtype=dtype)
        Y = E.new_empty((rows, d), dtype=dtype)
        strips = triton.cdiv(d, forward_triton.COLUMNS)
        grid = (triton.cdiv(rows, forward_triton.ROWS) * strips,)
        drop = (*mask.unbind(), None)
        inputs, products = (*X.unbind(), None), P.unbind()
        for i in range(depth):
            map_labels[grid](
                inputs[i],
                U[i],
                b[i],
                E,
                drop[i + 1],
                products[i],
                inputs[i + 1],
                Y,
                count[i],
                V,
                rows,
                d,
                ACTIVATION=options.activation,
                HAS_NEXT=i < depth - 1,
                num_warps=forward_triton.WARPS,
                **launch,
            )
        ctx.save_for_backward(X, P, position, count, mask, *U)
        ctx.has_bias = len(parameters) > depth
        ctx.options = options
        ctx.dtypes = (embedding.dtype, parameters[0].dtype, parameters[-1].dtype)
        return without_padding(Y, V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("DeepResidual", grad)
        X, P, position, count, mask, *U = ctx.saved_tensors
        options: Options = ctx.options
        depth, V, d = P.shape
        rows = X.shape[1]
        launch = overlapping(X)
        dY = grad.contiguous()
        dP = X.new_empty((depth, rows, d))
        dX = X.new_empty((depth, V, d))
        dE = dY.new_empty((V, d), dtype=ctx.dtypes[0])
        row_blocks = triton.cdiv(rows, backward_triton.ROWS)
        sums = dY.new_empty((depth, row_blocks, d), dtype=torch.float32)
        products, gradients = P.unbind(), dP.unbind()
        blocks = sums.unbind()
        strips = triton.cdiv(d, backward_triton.COLUMNS)
        start_gradient[(row_blocks * strips,)](
            dY,
            products[-1],
            gradients[-1],
            blocks[-1],
            V,
            rows,
            d,
            ACTIVATION=options.activation,
            num_warps=4,
            **launch,
        )
        splits, labels_per_split = _splits(V)
        partial = dP.new_empty((depth, splits, d, d), dtype=torch.float32)
        tiles = triton.cdiv(d, backward_triton.SUM_ROWS)
        tiles *= triton.cdiv(d, backward_triton.SUM_COLUMNS)
        grid = (tiles * splits + row_blocks * strips,)
        for i in reversed(range(depth)):
            below = i > 0
            map_gradient[grid](
                gradients[i],
                U[i],
                mask[i],
                products[i - 1] if below else None,
                X[i],
                dX[i],
                gradients[i - 1] if below else None,
                blocks[i - 1] if below else None,
                partial[i],
                count[i],
                V,
                rows,
                d,
                splits,
                labels_per_split,
                ACTIVATION=options.activation,
                HAS_BELOW=below,
                num_warps=backward_triton.WARPS,
                **launch,
            )
        dU = dY.new_empty((depth, d, d), dtype=ctx.dtypes[1])
        db = dY.new_empty((depth, d), dtype=ctx.dtypes[2])
        strips = triton.cdiv(d, COLUMNS)
        U_programs = triton.cdiv(d, _U_ROWS) * strips
        E_programs = triton.cdiv(V, _ROWS) * strips
        finish[(depth * U_programs + E_programs,)](
            partial,
            sums,
            dY,
            dX,
            dU,
            db,
            dE,
            position,
            count,
            V,
            d,
            V * d,
            row_blocks,
            U_programs,
            DEPTH=depth,
            SPLITS=splits,
            U_ROWS=_U_ROWS,
            ROWS=_ROWS,
            num_warps=4,
            **launch,
        )
        of_biases = db.unbind() if ctx.has_bias else ()
        return dE, None, None, None, None, None, *dU.unbind(), *of_biases


def _splits(V: int) -> tuple[int, int]:
    """Into how many parts the sum over the labels is cut, and how many of them one has."""
    wanted = min(triton.cdiv(V, LABELS_PER_SPLIT), MOST_SPLITS)
    inner = backward_triton.SUM_INNER
    each = triton.cdiv(triton.cdiv(V, inner), wanted) * inner
    return triton.cdiv(V, each), each


def overlapping(tensor: Tensor) -> dict[str, bool]:
    """Lets a launch begin before the previous one has ended, where a GPU can: from Hopper on.

    A dozen short ones follow one another, and each begins with nothing in flight.
    """
    if not tensor.is_cuda or torch.version.hip:
        return {"OVERLAP": False}
    can = torch.cuda.get_device_capability(tensor.device)[0] >= 9
    return {"OVERLAP": can, "launch_pdl": can}


def _narrowed(
    E: Tensor,
    masks: Tensor,
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
    X: Tensor,
    launch: dict[str, bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Place and count of the columns that are read; masks, all b and all U without the others.

    Fills X with these columns of E.
    """
    depth, (V, d) = len(weights), E.shape
    U = X.new_empty((depth, d, d))
    position, order = E.new_empty((2, depth + 1, d), dtype=torch.int32)
    count = E.new_empty((depth, 4), dtype=torch.int32)
    mask, b = E.new_empty((2, depth, d), dtype=torch.float32)
    arrange[(depth + 1,)](
        masks,
        biases,
        position,
        order,
        count,
        mask,
        b,
        d,
        DEPTH=depth,
        BLOCK=triton.next_power_of_2(d),
        num_warps=4,
        **launch,
    )
    U_programs = triton.cdiv(d, _ROWS) * triton.cdiv(d, COLUMNS)
    E_programs = triton.cdiv(V, _ROWS) * depth
    narrow[(depth * U_programs + E_programs,)](
        E,
        mask,
        weights,
        X,
        U,
        order,
        count,
        V,
        d,
        X.stride(0),
        U_programs,
        DEPTH=depth,
        ROWS=_ROWS,
        num_warps=4,
        **launch,
    )
    return position, count, mask, b, U.unbind()
