"""Backward passes that have no derivative of their own, at little cost to the host."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd import function


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's, which also turns gradients off where they are off already: at every backward."""
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def chosen(ctx: Any, *grads: Any) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)

    return chosen
