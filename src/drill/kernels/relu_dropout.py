"""drop(relu(x + b)) in one pass over x, and its gradient in one pass.

    y = m max(x + b, 0),   dx = dy / (1 - p) where y > 0, else 0;   db = the sum of dx over rows

m is 0 with probability p, else 1 / (1 - p). Plain PyTorch keeps the sum and m beside y and passes
twice each way, and once more for db. Here y alone is kept: where it is 0, x + b was negative or
dropped, and no gradient flows either way.

Shapes: x (..., m), b (m,).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.residual_norm import SublayerImplementation, choose_sublayer


def relu_dropout(
    x: Tensor,  # (..., m)
    bias: Tensor,  # (m,)
    dropout: float,
    *,
    impl: SublayerImplementation = "auto",
) -> Tensor:
    """drop(relu(x + bias)) in the dtype of x, rounded once; pass dropout 0 in evaluation."""
    if choose_sublayer(impl, x)[0] == "triton":
        with torch.cuda.device_of(x):  # where Triton launches
            return cast(Tensor, _ReluDropout.apply(x, bias, dropout))
    return F.dropout((x + bias).to(x.dtype).relu(), dropout)


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dropout: float) -> Tensor:
        from drill.kernels.relu_dropout_triton import forward
        from drill.kernels.row_tiles import drawn_seed

        rows = x.contiguous().view(-1, x.shape[-1])
        out = forward(rows, bias, drawn_seed(dropout, x.device), dropout).view(x.shape)
        ctx.save_for_backward(out)
        ctx.dropout, ctx.bias_dtype = dropout, bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        from drill.kernels.relu_dropout_triton import backward

        (out,) = ctx.saved_tensors
        width = out.shape[-1]
        rows = grad.contiguous().view(-1, width)
        d_x, d_bias = backward(rows, out.view(-1, width), ctx.dropout)
        return d_x.view(out.shape), d_bias.to(ctx.bias_dtype), None
