"""Dropout masks."""

import torch
from torch import Tensor


def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1-p), in the dtype and on the device of ``like``."""
    if like.device.type == "cpu":  # bernoulli_ says the same and is ten times slower there
        return (torch.rand(shape) >= p).to(like.dtype).div_(1.0 - p)
    mask = torch.empty(shape, dtype=like.dtype, device=like.device)
    return mask.bernoulli_(1.0 - p).div_(1.0 - p)


def drop_entries(weight: Tensor, p: float) -> Tensor:
    """weight * m, every entry for itself (DropConnect); for recurrent matrices."""
    return weight * draw_mask(tuple(weight.shape), p, weight) if p > 0.0 else weight
