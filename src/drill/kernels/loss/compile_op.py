"""``drill::nll`` as an opaque operator, so that ``torch.compile`` keeps one graph around it."""

from typing import Any, cast

import torch
from torch import Tensor, library

from drill.kernels.loss.chunk_plan import max_saved_elements
from drill.kernels.loss.chunked import backward_pass, forward_pass, wants_gradients
from drill.kernels.loss.head import Head, NllOptions, Wanted


@library.custom_op("drill::nll", mutates_args=())
def nll_op(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    ignore_index: int,
    smoothing: float,
    dtype: torch.dtype,
    engine: str,
    memory: int,
    sigsoftmax: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    settings = NllOptions(ignore_index, smoothing, dtype, engine, memory, sigsoftmax)
    head = Head(hidden, weight, bias, targets, settings)
    saved = hidden.new_empty(max_saved_elements(head, keep), dtype=dtype)
    losses, lse, _ = forward_pass(head, keep, saved)
    return losses, lse, saved


@nll_op.register_fake
def _(hidden, weight, bias, targets, *settings):  # type: ignore[no-untyped-def]
    head, keep = Head(hidden, weight, bias, targets, NllOptions(*settings[:-1])), settings[-1]
    per_token = hidden.new_empty(hidden.shape[0], dtype=head.exact)
    # An upper bound: the plan must not be traced, or each number of tokens would be compiled again.
    saved = hidden.new_empty(max_saved_elements(head, keep), dtype=head.settings.dtype)
    return per_token, torch.empty_like(per_token), saved


@library.custom_op("drill::nll_backward", mutates_args=())
def nll_backward_op(
    scale: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    lse: Tensor,
    saved: Tensor,
    ignore_index: int,
    smoothing: float,
    dtype: torch.dtype,
    engine: str,
    memory: int,
    sigsoftmax: bool,
    wanted: list[bool],
) -> list[Tensor]:
    settings = NllOptions(ignore_index, smoothing, dtype, engine, memory, sigsoftmax)
    head = Head(hidden, weight, bias, targets, settings)
    own = saved.clone() if saved.numel() else None  # an operator must not write into its inputs
    grads = backward_pass(head, scale, lse, own, cast(Wanted, tuple(wanted)))
    return [grad for grad in grads if grad is not None]


@nll_backward_op.register_fake
def _(scale, hidden, weight, bias, targets, lse, saved, *settings):  # type: ignore[no-untyped-def]
    like = [hidden, weight, bias]
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x, w in zip(like, settings[-1], strict=True)
        if w
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, bias, targets, *settings, _keep = inputs
    ctx.save_for_backward(hidden, weight, bias, targets, output[1], output[2])
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    wanted = [
        bool(need) and x is not None
        for need, x in zip(ctx.needs_input_grad[:3], ctx.saved_tensors[:3], strict=True)
    ]
    made = iter(nll_backward_op(grad, *ctx.saved_tensors, *ctx.settings, wanted))
    return (
        *(next(made) if want else None for want in wanted),
        *(None for _ in range(8)),
    )  # targets, six options, keep


nll_op.register_autograd(_backward, setup_context=_setup_context)


def compiled_nll(head: Head) -> Tensor:
    """``chunked_nll`` with reduction "none", for use inside ``torch.compile``."""
    *tensors, settings = head
    keep = wants_gradients(*head[:3])
    return cast(Tensor, nll_op(*tensors, *settings, keep)[0])
