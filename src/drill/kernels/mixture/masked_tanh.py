"""tanh(x) * m in one pass over x, and its gradient in one pass.

    y = m tanh(x),   dx = dy (m - y^2 / m), 0 where m is 0

Plain PyTorch keeps tanh(x) and m tanh(x) and passes twice each way. Here y alone is kept: where m
is not 0 it says what tanh(x) was. The product is rounded once.

Shapes: x (T, ...), m either as x or (1, ...), one mask for all T steps.
"""

from typing import Any, Literal, cast

import torch
from torch import Tensor

from drill.kernels.runtime.dispatch import log_once, triton_missing
from drill.kernels.runtime.dropout_masks import masked

TanhImplementation = Literal["auto", "reference", "triton"]


def masked_tanh(x: Tensor, mask: Tensor, *, impl: TanhImplementation = "auto") -> Tensor:
    """tanh(x) * mask in the dtype of x; the mask is of ``draw_mask`` and gets no gradient.

    ``auto`` takes the kernel for half precision on a GPU, which is where the passes cost time.
    """
    if impl == "auto":
        impl = _choose(x)
    if impl == "reference":
        return masked(torch.tanh(x), mask)
    missing = kernel_missing(x)
    if missing is not None:
        raise ValueError(f'masked_tanh: {missing}; use impl="reference" or impl="auto"')
    with torch.cuda.device_of(x):  # where Triton launches
        return cast(Tensor, _MaskedTanh.apply(x, mask))


def _choose(x: Tensor) -> TanhImplementation:
    if not x.is_cuda or torch.compiler.is_compiling():
        return "reference"
    missing = kernel_missing(x)
    if missing is None:
        return "triton"
    log_once("masked_tanh", "reference", missing)
    return "reference"


def kernel_missing(x: Tensor) -> str | None:
    """Why the kernel cannot serve; None when it can."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"the kernel's tanh has the digits of bfloat16 and float16, x is {x.dtype}"
    return triton_missing(x.device, x.dtype)


class _MaskedTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        from drill.kernels.mixture.masked_tanh_triton import forward

        y = forward(x, mask)
        ctx.save_for_backward(y, mask)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, mask = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need steps that autograd records
            return gradient(grad, y, mask), None
        from drill.kernels.mixture.masked_tanh_triton import backward

        return backward(grad, y, mask), None


def gradient(grad: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The gradient of x in plain PyTorch, from that of y."""
    wide = y.to(mask.dtype)
    squared = torch.where(mask > 0, wide * wide / torch.where(mask > 0, mask, 1), wide)
    return (grad * (mask - squared)).to(y.dtype)
