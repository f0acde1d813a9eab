"""A residual sum and its layer norm, in one pass forward and one backward.

    r = x + drop(y W^T + b),   n = gamma (r - mean(r)) / sqrt(var(r) + epsilon) + beta

Between two sub-layers of a Transformer, whether it norms first (r goes on) or last (n goes on).
Plain PyTorch passes over (N, d) for the bias, the mask, the sum, the norm and, under autocast, for
the conversion of n, and in backward once more for each. Here forward and backward read and write
every tensor once and save r, the means and the scales. Dropout masks are drawn again from a seed,
and gradients of vectors are summed in one order: the same seed gives the same bits. Where the
kernels do not run, ``models/transformer/blocks.py`` calls PyTorch's modules one by one.

Shapes: x (..., d), y (..., i), W (d, i); b, gamma and beta (d,).
"""

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.runtime.dispatch import triton_missing
from drill.kernels.transformer.autocast_linear import LinearWeights, product_gradients

SublayerImplementation = Literal["auto", "reference", "triton"]
SUBLAYER_IMPLEMENTATIONS: tuple[str, ...] = get_args(SublayerImplementation)


def choose_sublayer(
    impl: SublayerImplementation, x: Tensor
) -> tuple[Literal["reference", "triton"], str]:
    """The implementation for tensors like ``x``, and why.

    ``auto`` takes the kernels on a GPU with gradients. Evaluation is plain PyTorch, so that it does
    not depend on how a model was trained.
    """
    if impl == "reference":
        return "reference", "requested"
    missing = triton_missing(x.device, x.dtype)
    if impl == "triton":
        if missing is not None:
            raise ValueError(f'impl="triton": {missing}; use impl="reference" or impl="auto"')
        return "triton", "requested"
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
    y: Tensor | None,  # (..., i)
    weight: Tensor,  # (d,)
    bias: Tensor,  # (d,)
    *,
    y_linear: LinearWeights | None = None,  # (d, i)
    dropout: float = 0.0,
    epsilon: float = 1e-5,
    carry_norm: bool = False,
    dtype: torch.dtype | None = None,
    seed: Tensor | None = None,  # (1,) or more, the first counts
) -> tuple[Tensor, Tensor]:
    """r = x + drop(y W^T + b) and its layer norm n, by the kernels.

    Args:
        y: of what is added; None: r is x.
        y_linear: W and b, where y is given.
        dropout: of what is added; above 0 it needs a seed.
        seed: of the dropout, from ``drill.kernels.runtime.dropout_masks.drawn_seeds``.
        carry_norm: return n in place of r, for a norm after the sum.
        dtype: of the second result; that of x by default.

    Returns:
        r or n in the dtype of x, and n in ``dtype``.
    """
    # The kernels rely on these shapes: a shorter vector would be read past its end.
    shape, width = x.shape[:-1], x.shape[-1]
    assert weight.shape == bias.shape == (width,)
    y_weights: tuple[Tensor | None, ...] = (None, None, None)
    if y is not None:
        assert y_linear is not None
        matrix, y_bias, half_matrix, _ = y_linear
        assert y.shape[:-1] == shape
        assert matrix.shape == (width, y.shape[-1])
        assert y_bias.shape == (width,)
        assert dropout == 0.0 or seed is not None
        y_weights = matrix, half_matrix, y_bias
    dtype = x.dtype if dtype is None else dtype
    numbers = float(dropout), float(epsilon)
    carried, n = _ResidualNorm.apply(
        x, y, *y_weights, weight, bias, seed, *numbers, dtype, carry_norm
    )
    return cast(tuple[Tensor, Tensor], (n if carried is None else carried, n))


class _ResidualNorm(torch.autograd.Function):
    """r, None if n is carried, and n."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        y_weight: Tensor | None,
        half_weight: Tensor | None,
        y_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        seed: Tensor | None,
        dropout: float,
        epsilon: float,
        dtype: torch.dtype,
        carry_norm: bool,
    ) -> tuple[Tensor | None, Tensor]:
        from drill.kernels.transformer import residual_norm_triton

        ctx.y_dtype = None if y is None else y.dtype
        y_half = None
        if half_weight is not None and y is not None:
            y_half = y.to(half_weight.dtype)
            y = F.linear(y_half, half_weight)
        weight = weight.contiguous()  # backward reads it too
        made = residual_norm_triton.forward(
            x.contiguous(),
            None if y is None else y.contiguous(),
            None if y_bias is None else y_bias.contiguous(),
            weight,
            bias.contiguous(),
            seed,
            dropout=dropout,
            epsilon=epsilon,
            dtype=dtype,
            twice=carry_norm and dtype != x.dtype,
        )
        ctx.save_for_backward(made.sum, made.statistics, weight, seed, y_half, half_weight)
        ctx.dropout, ctx.carry_norm = dropout, carry_norm
        ctx.added = None if y is None else y.dtype
        ctx.y_weight_dtype = None if y_weight is None else y_weight.dtype
        ctx.vectors = weight.dtype, bias.dtype, None if y_bias is None else y_bias.dtype
        ctx.set_materialize_grads(False)
        if carry_norm:
            return made.wide, made.read
        return x.view_as(x) if made.sum is x else made.sum, made.read

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_carried: Tensor | None, d_read: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from drill.kernels.transformer import residual_norm_triton

        r, statistics, weight, seed, y_half, half_weight = ctx.saved_tensors
        d_carried = None if d_carried is None else d_carried.contiguous()
        d_x, d_y, sums = residual_norm_triton.backward(
            None if ctx.carry_norm else d_carried,
            None if d_read is None else d_read.contiguous(),
            d_carried if ctx.carry_norm else None,
            r,
            statistics,
            weight,
            seed,
            dropout=ctx.dropout,
            y_dtype=ctx.added,
        )
        d_y_weight = None
        if d_y is not None:
            dtypes, wanted = (ctx.y_dtype, ctx.y_weight_dtype), ctx.needs_input_grad[1:3]
            d_y, d_y_weight = product_gradients(d_y, y_half, half_weight, dtypes, wanted)
        d_weight, d_bias, d_y_bias = (
            None if each is None else each.to(dtype)
            for each, dtype in zip(sums, ctx.vectors, strict=True)
        )
        return d_x, d_y, d_y_weight, None, d_y_bias, d_weight, d_bias, *(None,) * 5
