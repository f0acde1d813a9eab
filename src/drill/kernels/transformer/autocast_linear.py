"""x W^T + b under autocast, with the gradients of W and b in their own dtype.

PyTorch converts W, and its gradient comes out in half precision and is converted back by a pass of
its own. Here the product that makes the gradient writes float32: nothing is rounded on the way, and
there is no second pass.

Shapes: x (..., i), W (o, i), b (o,).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.runtime.dispatch import autocast_on


class LinearWeights(NamedTuple):
    """The weights of a linear map, and the same in the dtype of products."""

    weight: Tensor  # (o, i)
    bias: Tensor  # (o,)
    half_weight: Tensor
    half_bias: Tensor


@torch.no_grad()
def cast_together(maps: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> list[LinearWeights]:
    """Cast the weights and biases of many maps by one launch."""
    wide: list[Tensor] = []
    half: list[Tensor] = []

    def to_come(each: Tensor) -> Tensor:
        if each.dtype == dtype:
            return each
        wide.append(each)
        half.append(torch.empty_like(each, dtype=dtype))
        return half[-1]

    made = [LinearWeights(weight, bias, to_come(weight), to_come(bias)) for weight, bias in maps]
    if wide:
        torch._foreach_copy_(half, wide)
    return made


def product(x: Tensor, weights: LinearWeights) -> Tensor:
    """``F.linear`` in the dtype that the weights are cast to; for training."""
    if weights.half_weight is weights.weight:
        return F.linear(x, weights.weight, weights.bias)
    weight, bias, *half = weights
    return cast(Tensor, _Product.apply(x, *half, weight, bias)[0])


def products(x: Tensor, maps: Sequence[LinearWeights]) -> tuple[Tensor, ...]:
    """``product`` of several maps for one x, as one product.

    Its parts share their memory, and so do the gradients of the weights: who keeps one keeps all.
    Until backward it keeps another copy of all matrices.
    """
    with torch.no_grad():  # gradients go to the weights by themselves
        half_weight = torch.cat([each.half_weight for each in maps])
        half_bias = torch.cat([each.half_bias for each in maps])
    matrices, biases = ([each[i] for each in maps] for i in (0, 1))
    return cast(tuple[Tensor, ...], _Product.apply(x, half_weight, half_bias, *matrices, *biases))


class _Product(torch.autograd.Function):
    """x times the matrices of one map, or of several that are cast as one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, half_weight: Tensor, half_bias: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        matrices = weights[: len(weights) // 2]
        ctx.sizes = [each.shape[0] for each in matrices]
        ctx.dtypes = x.dtype, weights[0].dtype, weights[-1].dtype
        x = x.to(half_weight.dtype)
        ctx.save_for_backward(x, half_weight)
        return F.linear(x, half_weight, half_bias).split(ctx.sizes, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, half_weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        grad = grads[0] if len(grads) == 1 else torch.cat(grads, -1)
        x_wanted, _, _, *wanted = ctx.needs_input_grad
        maps = len(ctx.sizes)
        either = x_wanted, any(wanted[:maps])
        d_x, d_weight = product_gradients(grad, x, half_weight, (x_dtype, weight_dtype), either)
        d_bias = _summed(grad, bias_dtype) if any(wanted[maps:]) else None
        parts: list[Tensor | None] = []
        for whole in (d_weight, d_bias):
            parts += [None] * maps if whole is None else whole.split(ctx.sizes)
        given = (each if want else None for each, want in zip(parts, wanted, strict=True))
        return d_x, None, None, *given


def product_gradients(
    grad: Tensor,  # (..., o)
    x: Tensor,  # (..., i), of the dtype of grad
    half_weight: Tensor,  # (o, i), of the same
    dtypes: tuple[torch.dtype, torch.dtype],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and W in these dtypes; None for those that are not wanted."""
    if autocast_on(grad.device):  # backward may be called under it
        with torch.autocast(grad.device.type, enabled=False):
            return product_gradients(grad, x, half_weight, dtypes, wanted)
    x_dtype, weight_dtype = dtypes
    d_x = d_weight = None
    if wanted[0]:
        d_x = torch.matmul(grad, half_weight).to(x_dtype)
    if wanted[1]:
        rows = grad.reshape(-1, grad.shape[-1])  # (N, o)
        d_weight = _wide(rows.t(), x.reshape(-1, x.shape[-1]), weight_dtype)
    return d_x, d_weight


def _summed(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """(..., o) -> (o,)"""
    return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=dtype)


def _wide(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b, written in ``dtype``; only CUDA has such products, and only for float32."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)
