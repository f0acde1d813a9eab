"""A residual and the norm that reads it, in one pass each way.

    r = x + drop(y + b),   n = gamma (r - mean(r)) / sqrt(var(r) + epsilon) + beta

Between two sub-layers of a Transformer, whether it norms first (r goes on) or last (n goes on).
Plain PyTorch passes over (N, d) for the bias, the mask, the sum, the norm and, under autocast, for
the conversion of n, and in backward once more for each. Here both ways read and write every tensor
once; r, the means and the scales are all that is kept. What was dropped is drawn again from a seed,
and gradients of vectors are summed in one order: the same seed gives the same bits.

Shapes: x and y (..., d); b, gamma and beta (d,).
"""

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.nll import triton_missing

SublayerImplementation = Literal["auto", "reference", "triton"]
SUBLAYER_IMPLEMENTATIONS: tuple[str, ...] = get_args(SublayerImplementation)


def choose_sublayer(
    impl: SublayerImplementation, x: Tensor
) -> tuple[Literal["reference", "triton"], str]:
    """What ``impl`` comes to for tensors like ``x``, and why.

    ``auto`` takes the kernels on a GPU where gradients are recorded. Without gradients plain
    PyTorch stays, so that what is evaluated does not depend on how it was trained.
    """
    if impl == "reference":
        return "reference", "asked for"
    missing = triton_missing(x.device, x.dtype)
    if impl == "triton":
        if missing is not None:
            raise ValueError(f'impl="triton": {missing}; use impl="reference" or impl="auto"')
        return "triton", "asked for"
    if x.device.type != "cuda":
        return "reference", f"made for CUDA devices, not {x.device.type}"
    if torch.compiler.is_compiling():
        return "reference", "torch.compile fuses by itself"
    if not torch.is_grad_enabled():
        return "reference", "no gradients are recorded"
    if missing is not None:
        return "reference", missing
    return "triton", "CUDA device, Triton is installed"


def residual_norm(
    x: Tensor,  # (..., d)
    y: Tensor | None,  # (..., d)
    weight: Tensor,  # (d,)
    bias: Tensor,  # (d,)
    *,
    y_bias: Tensor | None = None,  # (d,)
    dropout: float = 0.0,
    epsilon: float = 1e-5,
    carry_norm: bool = False,
    dtype: torch.dtype | None = None,
    impl: SublayerImplementation = "auto",
) -> tuple[Tensor, Tensor]:
    """What a residual goes on with, and n as products read it.

    Goes on with r, or with n where ``carry_norm`` says that the norm comes after the sum, in the
    dtype of x. The second is in ``dtype``, that of x unless given. Without ``y`` r is x.
    ``dropout`` is of y alone; pass 0 in evaluation.
    """
    dtype = x.dtype if dtype is None else dtype
    if choose_sublayer(impl, x)[0] == "triton":
        twice = carry_norm and dtype != x.dtype
        with torch.cuda.device_of(x):  # where Triton launches
            r, n, wide = _ResidualNorm.apply(
                x, y, y_bias, weight, bias, dropout, epsilon, dtype, twice
            )
        carried = (wide if twice else n) if carry_norm else r
        return cast(tuple[Tensor, Tensor], (carried, n))
    if y is not None:
        y = y if y_bias is None else y + y_bias
        x = x + F.dropout(y, dropout)
    n = F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)
    return n if carry_norm else x, n.to(dtype)


class _ResidualNorm(torch.autograd.Function):
    """r and n, and where it is wanted ``twice`` n in the dtype of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        y_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        dropout: float,
        epsilon: float,
        dtype: torch.dtype,
        twice: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        from drill.kernels.residual_norm_triton import forward
        from drill.kernels.row_tiles import drawn_seed

        rows = x.contiguous().view(-1, x.shape[-1])
        seed = None if y is None else drawn_seed(dropout, x.device)
        made = forward(
            rows,
            None if y is None else y.contiguous().view_as(rows),
            y_bias,
            weight,
            bias,
            seed,
            dropout=dropout,
            epsilon=epsilon,
            dtype=dtype,
            twice=twice,
        )
        ctx.save_for_backward(made.sum, made.mean, made.scale, weight, seed)
        ctx.shape, ctx.dropout = x.shape, dropout
        ctx.y_dtype = None if y is None else y.dtype
        ctx.vectors = [None if each is None else each.dtype for each in (y_bias, weight, bias)]
        ctx.set_materialize_grads(False)
        wide = None if made.wide is None else made.wide.view(x.shape)
        return made.sum.view(x.shape), made.read.view(x.shape), wide

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        from drill.kernels.residual_norm_triton import backward

        r, mean, scale, weight, seed = ctx.saved_tensors
        d_sum, d_read, d_wide = (
            None if each is None else each.contiguous().view_as(r) for each in grads
        )
        found = backward(
            d_sum,
            d_read,
            d_wide,
            r,
            mean,
            scale,
            weight,
            seed,
            dropout=ctx.dropout,
            y_dtype=ctx.y_dtype,
            y_bias=ctx.vectors[0] is not None,
        )
        sums = (found.y_bias, found.weight, found.bias)
        vectors = (
            None if each is None else each.to(dtype)
            for each, dtype in zip(sums, ctx.vectors, strict=True)
        )
        d_y = None if found.y is None else found.y.view(ctx.shape)
        return found.x.view(ctx.shape), d_y, *vectors, None, None, None, None
