"""An LSTM layer, a product and a kernel per step: bfloat16 products, float32 sums and states.

gates_t = W_ih x_t + b + W_hh (m h_{t-1});  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

with a mask m (B, H), or 1, and i at most 1 - f where input gates are capped.

The products with the input and the gradients of the weights are matrix products over all steps at
once; the recurrence is in ``graph_loops``. Needs nothing of a GPU but bfloat16, and large batches
cost it little. Units are padded so that rows are aligned.
"""

from typing import Any

import torch
import triton  # noqa: F401  this module is of no use without it
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.lstm.stepwise.graph_loops import (
    BackwardLoop,
    ForwardLoop,
    acquire_loop,
    multiply,
)
from drill.kernels.lstm.stepwise.weight_drop import masked_copy

OPERANDS = torch.bfloat16
"""The dtype of the operands of products, and of the output."""

ALIGNED = 16
"""Units are padded to a multiple of this: cuBLAS is fast on rows of whole 16 bytes."""


class StepwiseLstm(torch.autograd.Function):
    """x (T, B, i), h0 and c0 (B, H), weights as of nn.LSTM -> h (T, B, padded), c_T (B, H).

    ``drop`` is the share of the entries of W_hh that this call loses, the others growing by
    1 / (1 - drop). ``mask`` (B, H) has no gradient. Both h and x are bfloat16 and may be wider than
    H and i, the rest being zeros: so a stack of layers stays aligned. h_T is the last row of h.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        bias: Tensor,
        drop: float,
        mask: Tensor | None,
        capped: bool,
    ) -> tuple[Tensor, Tensor]:
        steps, batch, width = x.shape
        hidden = h0.shape[1]
        padded = -(-hidden // ALIGNED) * ALIGNED
        inputs = x.to(OPERANDS).reshape(steps * batch, width)
        w_in = widened(w_ih, padded, width)
        seed: Tensor | None = None
        if drop > 0.0:
            # On the device: drawn on the host it would be the same in every replay of a graph.
            seed = torch.randint(2**62, (1,), device=x.device)
            w = masked_copy(w_hh, padded, hidden, drop, seed, OPERANDS)
        else:
            w = widened(w_hh, padded, padded)
        gates = multiply(inputs, w_in.t())  # (T B, 4 padded), in the end their activations
        h = torch.empty(steps + 1, batch, padded, dtype=OPERANDS, device=x.device)
        c = torch.empty(steps + 1, batch, padded, dtype=torch.float32, device=x.device)
        h[0, :, hidden:] = 0.0  # W_hh has zeros there, but zero times NaN is NaN
        h[0, :, :hidden] = h0
        c[0, :, :hidden] = c0
        with acquire_loop(ForwardLoop, w, batch, hidden, steps, mask, capped) as loop:
            loop.now.copy_(h[0])
            if mask is not None:
                loop.now[:, :hidden] = h0 * mask
            loop.run(0, steps, (bias.float().contiguous(), gates, h, c))
        ctx.save_for_backward(inputs, w_in, w, gates, h, c, seed, mask)
        ctx.drop, ctx.capped = drop, capped
        ctx.sizes = (steps, batch, hidden, width, w_ih.shape[1])
        ctx.dtypes = [tensor.dtype for tensor in (x, h0, c0, w_ih, w_hh, bias)]
        return h[1:], c[steps, :, :hidden].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc_last: Tensor) -> tuple[Tensor | None, ...]:
        inputs, w_in, w, gates, h, c, seed, mask = ctx.saved_tensors
        steps, batch, hidden, width, real_width = ctx.sizes
        padded = w.shape[1]
        dgates = torch.empty(steps, batch, 4 * padded, dtype=w.dtype, device=h.device)
        with acquire_loop(BackwardLoop, w, batch, hidden, steps, mask, ctx.capped) as loop:
            loop.inner.zero_()
            loop.dc[:, :hidden] = dc_last
            loop.run(steps - 1, steps, (gates, c, dh.contiguous(), dgates))
            x_dtype, h_dtype, c_dtype, ih_dtype, hh_dtype, b_dtype = ctx.dtypes
            needs = ctx.needs_input_grad
            dh0 = None
            if needs[1]:
                dh0 = loop.inner.sum(0)[:, :hidden]
                dh0 = (dh0 if mask is None else dh0 * mask).to(h_dtype)
            dc0 = loop.dc[:, :hidden].to(c_dtype, copy=True) if needs[2] else None
        flat = dgates.view(steps * batch, 4 * padded)
        dx = (flat @ w_in).view(steps, batch, width).to(x_dtype) if needs[0] else None
        dw_ih = dw_hh = db = None
        if needs[3]:
            dw_ih = narrowed(multiply(flat.t(), inputs), hidden, real_width).to(ih_dtype)
        if needs[4]:
            before = h[:steps]
            if mask is not None:  # as the products have read it
                before = before.clone()
                before[..., :hidden] = before[..., :hidden] * mask
            dw = multiply(flat.t(), before.view(steps * batch, padded))
            if seed is not None:
                dw_hh = masked_copy(dw, hidden, hidden, ctx.drop, seed, hh_dtype)
            else:
                dw_hh = narrowed(dw, hidden, hidden).to(hh_dtype)
        if needs[5]:
            db = narrowed(flat.sum(0, dtype=torch.float32)[:, None], hidden, 1)[:, 0].to(b_dtype)
        return dx, dh0, dc0, dw_ih, dw_hh, db, None, None, None


def widened(weight: Tensor, padded: int, width: int) -> Tensor:
    """(4 H, i) -> (4 padded, width) for the products, with zeros in the rest."""
    hidden, i = weight.shape[0] // 4, weight.shape[1]
    if (padded, width) == (hidden, i):
        return weight.to(OPERANDS).contiguous()
    made = weight.new_zeros(4, padded, width, dtype=OPERANDS)
    made[:, :hidden, :i] = weight.view(4, hidden, i)
    return made.view(4 * padded, width)


def narrowed(gradient: Tensor, hidden: int, width: int) -> Tensor:
    """The inverse, of a gradient: (4 padded, w) -> (4 H, width)."""
    gates = gradient.view(4, -1, gradient.shape[1])[:, :hidden, :width]
    return gates.reshape(4 * hidden, width)
