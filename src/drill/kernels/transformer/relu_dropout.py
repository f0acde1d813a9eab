"""drop(relu(x + b)) in one pass over x, and its gradient in one pass.

    y = m max(x + b, 0),   dx = dy / (1 - p) where y > 0, else 0;   db = the sum of dx over rows

m is 0 with probability p, else 1 / (1 - p). Plain PyTorch saves the sum and m besides y and passes
twice each way, and once more for db. Here y alone is kept: where it is 0, x + b was negative or
dropped, and no gradient flows either way.

Shapes: x (..., m), b (m,).
"""

from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.runtime.autograd import once_differentiable
from drill.kernels.runtime.checks import require
from drill.kernels.transformer.autocast_linear import (
    Weights,
    check_map,
    check_vector,
    product_gradients,
)


def relu_dropout(
    x: Tensor,  # (..., m), or (..., i) where x_map is given
    bias: Tensor,  # (m,)
    dropout: float,
    *,
    x_map: Weights | None = None,  # (m, i)
    seed: Tensor | None = None,  # (1,) or more, the first counts
) -> Tensor:
    """drop(relu(x + bias)) in the dtype of x, rounded once, by the kernels.

    ``x_map`` is a matrix W still to be applied, x W^T in place of x; its own bias is not looked at.
    Dropout above 0 needs a ``seed``, from ``drill.kernels.runtime.dropout_masks.drawn_seeds``.
    """
    if x_map is not None:
        check_map("relu_dropout", "x_map", x_map, x.shape[-1], None)
    width = x.shape[-1] if x_map is None else x_map.weight.shape[0]
    check_vector("relu_dropout", "bias", bias, width)
    require(dropout == 0.0 or seed is not None, "relu_dropout", "seed", "a tensor", seed)
    matrix, half = (None, None) if x_map is None else (x_map.weight, x_map.half)
    return cast(Tensor, _ReluDropout.apply(x, matrix, half, bias, seed, float(dropout)))


@cache
def _kernels() -> Any:
    from drill.kernels.transformer import relu_dropout_triton

    return relu_dropout_triton


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        matrix: Tensor | None,
        half: Tensor | None,
        bias: Tensor,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        ctx.dtypes = x.dtype, None if matrix is None else matrix.dtype, bias.dtype
        inside = None
        if half is not None:
            inside = x.to(half.dtype)
            x = F.linear(inside, half)
        out: Tensor = _kernels().forward(x.contiguous(), bias.contiguous(), seed, dropout)
        ctx.save_for_backward(out, inside, half)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, inside, half = ctx.saved_tensors
        x_dtype, matrix_dtype, bias_dtype = ctx.dtypes
        d_x, d_bias = _kernels().backward(grad.contiguous(), out, ctx.dropout)
        d_matrix = None
        if inside is not None:
            dtypes = x_dtype, matrix_dtype
            d_x, d_matrix = product_gradients(d_x, inside, half, dtypes, ctx.needs_input_grad[:2])
        d_bias = d_bias if d_bias.dtype == bias_dtype else d_bias.to(bias_dtype)
        return d_x, d_matrix, None, d_bias, None, None
