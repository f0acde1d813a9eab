"""Errors where a backward pass would be differentiated again."""

import torch
from torch import Tensor


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
