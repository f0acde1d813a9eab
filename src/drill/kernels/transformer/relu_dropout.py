"""drop(relu(x W^T + b)): a product, and one pass over what it gives; in backward one pass too.

    y = m max(x W^T + b, 0),   gradient of the product dp = dy / (1 - p) where y > 0, else 0;
    db = the sum of dp over rows

m is 0 with probability p, else 1 / (1 - p). Plain PyTorch saves the sum and m besides y and passes
twice each way, and once more for db. Here y alone is kept: where it is 0, the sum was negative or
dropped, and no gradient flows either way.

Shapes: x (..., i), W (m, i), b (m,).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.transformer.autocast_linear import LinearWeights, product_gradients


def relu_dropout(
    x: Tensor,  # (..., i)
    linear: LinearWeights,  # (m, i)
    dropout: float,
    seed: Tensor | None = None,  # (1,) or more, the first counts
) -> Tensor:
    """drop(relu(x W^T + b)) in the dtype of products, rounded once after the product.

    Dropout above 0 needs a ``seed``, from ``drill.kernels.runtime.dropout_masks.drawn_seeds``.
    """
    weight, bias, half_weight, _ = linear
    # A shorter bias would be read past its end.
    assert bias.shape == weight.shape[:1]
    assert dropout == 0.0 or seed is not None
    return cast(Tensor, _ReluDropout.apply(x, weight, half_weight, bias, seed, float(dropout)))


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        half_weight: Tensor,
        bias: Tensor,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        from drill.kernels.transformer import relu_dropout_triton

        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        x_half = x.to(half_weight.dtype)
        p = F.linear(x_half, half_weight)
        out = relu_dropout_triton.forward(p.contiguous(), bias.contiguous(), seed, dropout)
        ctx.save_for_backward(out, x_half, half_weight)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from drill.kernels.transformer import relu_dropout_triton

        out, x_half, half_weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        dp, d_bias = relu_dropout_triton.backward(grad.contiguous(), out, ctx.dropout)
        dtypes, wanted = (x_dtype, weight_dtype), ctx.needs_input_grad[:2]
        d_x, d_weight = product_gradients(dp, x_half, half_weight, dtypes, wanted)
        return d_x, d_weight, None, d_bias.to(bias_dtype), None, None
