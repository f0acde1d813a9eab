"""Dropout masks.

A mask with one row, (1, d), is locked: shared by all labels, so that no label keeps a dimension
which another loses (variational dropout). A mask (V, d) drops every entry for itself.
"""

import torch
from torch import Tensor


def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1-p), on the device of ``like``; float32, or wider as it is.

    For ``drill.kernels.masks.masked``, which rounds a product once.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    mask = torch.empty(shape, dtype=dtype, device=like.device)
    return mask.bernoulli_(1.0 - p).div_(1.0 - p)
