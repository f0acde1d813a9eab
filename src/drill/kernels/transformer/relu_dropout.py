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

from drill.errors import require
from drill.kernels.runtime.autograd import once_differentiable
from drill.kernels.transformer.autocast_linear import (
    LinearWeights,
    check_linear,
    check_vector,
    product_gradients,
)


def relu_dropout(
    x: Tensor,  # (..., m), or (..., i) where x_linear is given
    bias: Tensor,  # (m,)
    dropout: float,
    *,
    x_linear: LinearWeights | None = None,  # (m, i)
    seed: Tensor | None = None,  # (1,) or more, the first counts
) -> Tensor:
    """drop(relu(x + bias)) in the dtype of x, rounded once, by the kernels.

    ``x_linear`` has a weight W still to be applied, x W^T in place of x; its bias is not read.
    Dropout above 0 needs a ``seed``, from ``drill.kernels.runtime.dropout_masks.drawn_seeds``.
    """
    if x_linear is not None:
        check_linear("relu_dropout", "x_linear", x_linear, x.shape[-1], None)
    width = x.shape[-1] if x_linear is None else x_linear.weight.shape[0]
    check_vector("relu_dropout", "bias", bias, width)
    require(dropout == 0.0 or seed is not None, "relu_dropout", "seed", "a tensor", seed)
    weights = (None, None) if x_linear is None else (x_linear.weight, x_linear.half_weight)
    return cast(Tensor, _ReluDropout.apply(x, *weights, bias, seed, float(dropout)))


@cache
def _kernels() -> Any:
    from drill.kernels.transformer import relu_dropout_triton

    return relu_dropout_triton


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        half_weight: Tensor | None,
        bias: Tensor,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        ctx.dtypes = x.dtype, None if weight is None else weight.dtype, bias.dtype
        x_half = None
        if half_weight is not None:
            x_half = x.to(half_weight.dtype)
            x = F.linear(x_half, half_weight)
        out: Tensor = _kernels().forward(x.contiguous(), bias.contiguous(), seed, dropout)
        ctx.save_for_backward(out, x_half, half_weight)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, x_half, half_weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        d_x, d_bias = _kernels().backward(grad.contiguous(), out, ctx.dropout)
        d_weight = None
        if x_half is not None:
            dtypes, wanted = (x_dtype, weight_dtype), ctx.needs_input_grad[:2]
            d_x, d_weight = product_gradients(d_x, x_half, half_weight, dtypes, wanted)
        d_bias = d_bias if d_bias.dtype == bias_dtype else d_bias.to(bias_dtype)
        return d_x, d_weight, None, d_bias, None, None
