"""Backward passes that have no derivative of their own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function


def require_plain_backward(name: str, grad: Tensor, mend: str) -> None:
    """Raise in a backward that is itself recorded, or batched: the fast paths run it once."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: the fast path has no second derivatives; use {mend}")
    try:
        grad.untyped_storage()
    except NotImplementedError:  # what torch says of a tensor that stands for a batch of them
        raise RuntimeError(
            f"{name}: the fast path takes one gradient at a time, not a batch "
            f"(is_grads_batched=True); use {mend}"
        ) from None


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's, which also turns gradients off where they are off already: at every backward."""
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def chosen(ctx: Any, *grads: Any) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)

    return chosen
