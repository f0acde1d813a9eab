"""x W^T + b under autocast, with the gradients of W and b in their own dtype.

PyTorch converts W, and its gradient comes out in half precision and is converted back by a pass of
its own. Here the product that makes the gradient writes float32: nothing is rounded on the way, and
there is no second pass.

Shapes: x (..., i), W (o, i), b (o,).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.nll import compute_dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As ``F.linear``, in the dtype of autocast where it is on; for training."""
    if compute_dtype(x) == weight.dtype:
        return F.linear(x, weight, bias)
    return cast(Tensor, _Product.apply(x, weight, bias, compute_dtype(x)))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        ctx.x_dtype, ctx.weight_dtype = x.dtype, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])  # (N, o)
        need_x, need_weight, _, _ = ctx.needs_input_grad
        d_x = d_weight = d_bias = None
        with torch.autocast(grad.device.type, enabled=False):  # backward may be called under it
            if need_x:
                d_x = torch.matmul(grad, weight).to(ctx.x_dtype)
            if need_weight:
                d_weight = _wide(rows.t(), x.reshape(-1, x.shape[-1]), ctx.weight_dtype)
            if ctx.bias_dtype is not None:
                d_bias = rows.sum(0, dtype=ctx.bias_dtype)
        return d_x, d_weight, d_bias, None


def _wide(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b, written in ``dtype``; only CUDA has such products, and only for float32."""
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)
