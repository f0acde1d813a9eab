"""The dropouts of recurrent encoders: entries are lost with probability p, others grow by 1/(1-p).

What differs is what one draw decides: a dimension for all steps, a word wherever it stands, or a
single weight.
"""

import torch
from torch import Tensor


def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1-p), in the dtype and on the device of ``like``."""
    # bernoulli_ says the same and is ten times slower on a CPU.
    kept = torch.rand(shape, device=like.device, dtype=torch.float32) >= p
    return kept.to(like.dtype).div_(1.0 - p)


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """x * m with one mask m (1, B, H) for all T steps of x (T, B, H), fresh for every call.

    Between recurrent layers: what a sequence loses, it loses at every step (variational dropout).
    """
    return x * draw_mask((1, *x.shape[1:]), p, x) if p > 0.0 else x


def row_dropout(vectors: Tensor, ids: Tensor, rows: int, p: float) -> Tensor:
    """m[ids] * vectors with a mask m (rows, 1): a word is lost wherever it stands.

    On looked-up ``vectors`` (T, B, d) of ``ids`` (T, B): the same as dropping whole rows of the
    table (rows, d) before the lookup, without touching the table, which labels may share.
    """
    return vectors * draw_mask((rows, 1), p, vectors)[ids] if p > 0.0 else vectors


def weight_dropout(weight: Tensor, p: float) -> Tensor:
    """weight * m, every entry for itself (DropConnect); for recurrent matrices."""
    return weight * draw_mask(tuple(weight.shape), p, weight) if p > 0.0 else weight
