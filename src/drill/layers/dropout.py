"""Dropout masks.

A mask with one row, (1, d), is locked: shared by all labels, so that no label keeps a dimension
which another loses (variational dropout). A mask (V, d) drops every entry for itself.
"""

import torch
from torch import Tensor


def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1-p), in the dtype and on the device of ``like``."""
    mask = torch.empty(shape, dtype=like.dtype, device=like.device)
    return mask.bernoulli_(1.0 - p).div_(1.0 - p)
