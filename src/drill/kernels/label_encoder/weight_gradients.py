"""The gradients of all U, and with them those of all b, from one batched product over the labels.

    dU = dP^T X,   db = dP^T 1

The inputs X (V, d') of the maps carry columns of ones, so that db is a column of the same product.
"""

import torch
from torch import Tensor

EXTRA = 16
"""Columns of ones that X has beyond d. One is needed; with these the width is a multiple of 16, and
Triton stores wide only where it knows that."""

MANY = 16384
"""Labels from which the batched product is cut: at WikiText-2's size it takes 157 microseconds in
one part, 125 in two, 120 in three and 167 in four."""
PARTS = 3


def sum_over_labels(dP: Tensor, X: Tensor) -> Tensor:
    """dP^T X per map, in float32."""
    a = dP.transpose(1, 2)
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, X, out_dtype=torch.float32)
    return torch.bmm(a, X).float()


def planes_for_sums(like: Tensor, maps: int, labels: int, width: int) -> Tensor:
    """(L, R, width) for the labels of each map, in bfloat16; who writes them clears rows beyond.

    As many as ``sum_in_parts`` needs to cut them into equal parts.
    """
    parts = _parts(labels)
    rows = -(-labels // (8 * parts)) * 8 * parts if parts > 1 else labels
    return like.new_empty((maps, rows, width), dtype=torch.bfloat16)


def _parts(labels: int) -> int:
    return PARTS if labels >= MANY else 1


def sum_in_parts(dP: Tensor, X: Tensor, labels: int) -> Tensor:  # (L, parts, d, d')
    """dP^T X per map and part of the labels, in float32."""
    L, _, d = dP.shape
    parts = _parts(labels)
    each = sum_over_labels(dP.view(L * parts, -1, d), X.view(L * parts, -1, X.shape[2]))
    return each.view(L, parts, d, -1)
