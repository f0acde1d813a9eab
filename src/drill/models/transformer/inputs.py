"""Positions, attention masks and checks of the inputs of a Transformer."""

import math

import torch
from torch import Tensor

from drill.errors import require
from drill.kernels.runtime.dispatch import compute_dtype

ALIGNED = 8
"""Fused attention copies a mask whose rows do not begin at multiples of so many numbers."""


def sinusoids(start: int | Tensor, length: int, width: int, like: Tensor) -> Tensor:
    """Positions start..start+length-1, (length, width): sin(t w_i), then cos(t w_i).

    w_i = 10000^(-2i/width) for i = 0..width/2-1. Made when asked for, so no sentence is too long.
    """
    exact = torch.promote_types(like.dtype, torch.float32)
    t = torch.arange(length, device=like.device, dtype=exact) + start
    i = torch.arange(width // 2, device=like.device, dtype=exact)
    angles = t[:, None] * torch.exp(i * (-2.0 * math.log(10_000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


def additive_mask(seen: Tensor, x: Tensor) -> Tensor:
    """(B, S) of True and False as (B, 1, 1, S) of 0 and -inf, in the precision of attention."""
    rows, length = seen.shape
    room = x.new_zeros((rows, 1, 1, -(-length // ALIGNED) * ALIGNED), dtype=compute_dtype(x))
    return room[..., :length].masked_fill_(~seen[:, None, None], -torch.inf)


def check_ids(what: str, ids: Tensor, dims: int, rows: int | None = None) -> None:
    expected = f"whole numbers of shape {'(B, T)' if dims == 2 else '(B*K,)'}"
    whole = ids.dtype in (torch.int64, torch.int32) and ids.dim() == dims and ids.shape[0] > 0
    given = ids.dtype, tuple(ids.shape)
    require(whole, "Transformer", what, expected, given, TypeError)
    fits = rows is None or ids.shape[0] == rows
    require(fits, "Transformer", what, f"{rows} rows, as the encoded source has", ids.shape[0])
