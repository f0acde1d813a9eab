"""x W^T + b under autocast, with the gradients of W and b in their own dtype.

Autocast casts W to half precision, so the gradient of W is computed in half precision too and cast
back by a second kernel. Here the product that computes the gradient writes float32: nothing is
rounded on the way, and there is no second kernel.

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
    """Weight and bias of a linear layer, and copies of them in the dtype of autocast."""

    weight: Tensor  # (o, i)
    bias: Tensor  # (o,)
    half_weight: Tensor
    half_bias: Tensor


@torch.no_grad()
def cast_together(
    layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype
) -> list[LinearWeights]:
    """Cast the weights and biases of many linear layers by one call."""
    wide: list[Tensor] = []
    half: list[Tensor] = []

    def cast_later(parameter: Tensor) -> Tensor:
        if parameter.dtype == dtype:
            return parameter
        wide.append(parameter)
        half.append(torch.empty_like(parameter, dtype=dtype))
        return half[-1]

    weights = [LinearWeights(W, b, cast_later(W), cast_later(b)) for W, b in layers]
    if wide:
        torch._foreach_copy_(half, wide)
    return weights


def linear(x: Tensor, weights: LinearWeights) -> Tensor:
    """``F.linear`` in the dtype that the weights are cast to; for training."""
    if weights.half_weight is weights.weight:
        return F.linear(x, weights.weight, weights.bias)
    weight, bias, *half = weights
    return cast(Tensor, _Linear.apply(x, *half, weight, bias)[0])


def several_linear(x: Tensor, layers: Sequence[LinearWeights]) -> tuple[Tensor, ...]:
    """``linear`` of several layers for one x, as one matrix product.

    The outputs share their memory, and so do the gradients of the weights: who keeps one keeps all.
    Until backward it keeps another copy of all matrices.
    """
    with torch.no_grad():
        half_weight = torch.cat([layer.half_weight for layer in layers])
        half_bias = torch.cat([layer.half_bias for layer in layers])
    matrices, biases = ([layer[i] for layer in layers] for i in (0, 1))
    return cast(tuple[Tensor, ...], _Linear.apply(x, half_weight, half_bias, *matrices, *biases))


class _Linear(torch.autograd.Function):
    """x W^T + b of one layer, or of several whose copies are one matrix.

    The copies in half precision are multiplied. The parameters themselves are arguments only so
    that autograd sends them their gradients; forward does not read their values.
    """

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
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, half_weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        grad = grad_outputs[0] if len(grad_outputs) == 1 else torch.cat(grad_outputs, -1)
        x_wanted, _, _, *wanted = ctx.needs_input_grad
        count = len(ctx.sizes)
        of_product = x_wanted, any(wanted[:count])
        d_x, d_weight = product_gradients(grad, x, half_weight, (x_dtype, weight_dtype), of_product)
        d_bias = _summed(grad, bias_dtype) if any(wanted[count:]) else None
        parts: list[Tensor | None] = []
        for whole in (d_weight, d_bias):
            parts += [None] * count if whole is None else whole.split(ctx.sizes)
        grads = (part if want else None for part, want in zip(parts, wanted, strict=True))
        return d_x, None, None, *grads


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
        d_weight = _matmul_to(rows.t(), x.reshape(-1, x.shape[-1]), weight_dtype)
    return d_x, d_weight


def _summed(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """(..., o) -> (o,)"""
    return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=dtype)


def _matmul_to(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b, written in ``dtype``; only CUDA has such products, and only for float32."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)
