"""Errors where a backward pass would be differentiated again."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function


def require_plain_backward(name: str, grad: Tensor, instead: str) -> None:
    """RuntimeError in a backward that is itself differentiated or batched: it runs once."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: the fast path has no second derivatives; use {instead}")
    try:
        grad.untyped_storage()
    except NotImplementedError:  # a batched tensor
        raise RuntimeError(
            f"{name}: the fast path takes one gradient at a time, not a batch "
            f"(is_grads_batched=True); use {instead}"
        ) from None


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Like torch's, but costs nothing where gradients are off already."""
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def chosen(ctx: Any, *grads: Any) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)

    return chosen
