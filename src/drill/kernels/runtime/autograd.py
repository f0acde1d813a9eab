"""Errors where a backward pass would be differentiated again."""

import torch
from torch import Tensor


def require_plain_backward(name: str, grad: Tensor) -> None:
    """RuntimeError in a backward that is itself differentiated or batched: it runs once."""
    instead = 'use impl="reference"'
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: the fast path has no second derivatives; {instead}")
    try:
        grad.untyped_storage()
    except NotImplementedError:  # a batched tensor
        raise RuntimeError(
            f"{name}: the fast path takes one gradient at a time, not a batch "
            f"(is_grads_batched=True); {instead}"
        ) from None
