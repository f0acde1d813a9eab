"""``masked_tanh`` as Triton kernels. Imported on first use."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drill.kernels.runtime.triton_math import tanh

BLOCK, STEPS = 1024, 4
"""A program reads BLOCK entries of the mask once and applies them to STEPS rows of x."""
_WARPS = 4


@triton.jit
def _forward(x, mask, y, steps, size, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """y = tanh(x) * mask over (steps, size), the mask (size,)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    m = tl.load(mask + at, mask=inside, other=0.0)
    first = tl.program_id(1).to(tl.int64) * STEPS
    for step in range(first, tl.minimum(steps, first + STEPS)):
        offset = step * size + at
        t = tanh(tl.load(x + offset, mask=inside, other=0.0).to(tl.float32))
        tl.store(y + offset, (t * m).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad, y, mask, dx, steps, size, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """dx = grad (m - y^2 / m) over (steps, size), the mask (size,)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    m = tl.load(mask + at, mask=inside, other=0.0)
    kept = m > 0
    inverse = 1.0 / tl.where(kept, m, 1.0)
    first = tl.program_id(1).to(tl.int64) * STEPS
    for step in range(first, tl.minimum(steps, first + STEPS)):
        offset = step * size + at
        g = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + offset, mask=inside, other=0.0).to(tl.float32)
        d = m - tl.where(kept, value * value * inverse, value)  # dropped: y is 0, or NaN if x was
        tl.store(dx + offset, (g * d).to(dx.dtype.element_ty), mask=inside)


def forward(x: Tensor, mask: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel():
        steps, size = _extent(x, mask)
        _forward[_grid(steps, size)](
            x.contiguous(), mask.contiguous(), y, steps, size, BLOCK, STEPS, num_warps=_WARPS
        )
    return y


def backward(grad: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    dx = torch.empty_like(y)
    if y.numel():
        steps, size = _extent(y, mask)
        _backward[_grid(steps, size)](
            grad.contiguous(),
            y,
            mask.contiguous(),
            dx,
            steps,
            size,
            BLOCK,
            STEPS,
            num_warps=_WARPS,
        )
    return dx


def _extent(x: Tensor, mask: Tensor) -> tuple[int, int]:
    """How often the mask is used, and its size."""
    assert mask.shape in (x.shape, (1, *x.shape[1:]))
    return x.numel() // mask.numel(), mask.numel()


def _grid(steps: int, size: int) -> tuple[int, int]:
    return triton.cdiv(size, BLOCK), triton.cdiv(steps, STEPS)
