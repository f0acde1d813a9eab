"""Dropout masks in float32, and seeds on the device.

1/(1-p) in bfloat16 is off by up to 0.2%, the same for every entry, which does not average out. So
masks are float32, and a product with one is rounded once.

A mask with one row, (1, d), is locked: shared by all labels (variational dropout). A mask (V, d) is
standard dropout.
"""

from typing import Any

import torch
from torch import Tensor

from drill.kernels.runtime.dispatch import triton_missing


def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1-p), on the device of ``like``; float32, or wider as it is."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if like.device.type == "cpu":  # bernoulli_ is ten times slower there
        drawn = torch.rand(shape, dtype=torch.float32, device=like.device)
        return (drawn >= p).to(dtype).div_(1.0 - p)
    mask = torch.empty(shape, dtype=dtype, device=like.device)
    return mask.bernoulli_(1.0 - p).div_(1.0 - p)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """x * mask in the dtype of x, rounded once; the mask broadcasts and gets no gradient."""
    if x.dtype == mask.dtype:
        return x * mask
    if torch.compiler.is_compiling():
        return (x * mask).to(x.dtype)
    return _Masked.apply(x, mask)


def multiply(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """x * factor in ``dtype``, rounded once, without gradients; the factor broadcasts."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    if x.is_cuda and half and triton_missing(x.device, factor.dtype) is None:
        from drill.kernels.runtime import multiply_triton

        product = multiply_triton.multiply(x, factor, dtype)
        if product is not None:
            return product
    return torch.mul(x, factor, out=torch.empty_like(x, dtype=dtype))


def drop_entries(weight: Tensor, p: float) -> Tensor:
    """weight * m with standard dropout (DropConnect), for recurrent matrices."""
    return masked(weight, draw_mask(tuple(weight.shape), p, weight)) if p > 0.0 else weight


class _Masked(torch.autograd.Function):
    """One launch each way, where a product and a conversion would be two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return multiply(x, mask, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return masked(grad, mask), None


def drawn_seeds(count: int, device: torch.device) -> tuple[Tensor, ...]:
    """``count`` seeds by one launch, each (2,) of which the first is used.

    ``torch.manual_seed`` reproduces them, and every replay of a CUDA graph draws others. All
    addresses are multiples of 16, so Triton compiles one kernel for them.
    """
    if count == 0:
        return ()
    return torch.randint(2**62, (count, 2), device=device).unbind(0)
