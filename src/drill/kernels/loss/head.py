"""What a loss is computed of, its options, and its gradients.

Shapes: N tokens, V labels, k width.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class NllOptions(NamedTuple):
    """The options of a call."""

    ignore_index: int
    smoothing: float
    dtype: torch.dtype  # of the products
    engine: str
    memory: int
    sigsoftmax: bool = False  # scores are z + log sigmoid(z) of the logits z


class Head(NamedTuple):
    """What a loss is computed of, and how."""

    hidden: Tensor  # (N, k)
    weight: Tensor  # (V, k)
    bias: Tensor | None  # (V,)
    targets: Tensor  # (N,)
    settings: NllOptions

    @property
    def labels(self) -> int:
        return self.weight.shape[0]

    @property
    def exact(self) -> torch.dtype:
        """The dtype of sums and losses."""
        return torch.promote_types(self.settings.dtype, torch.float32)


Wanted = tuple[bool, bool, bool]
"""Which gradients are asked for: of hidden, weight, bias."""


class Gradients(NamedTuple):
    """Gradients of a head's inputs; None where none is required."""

    hidden: Tensor | None  # (N, k)
    weight: Tensor | None  # (V, k), while they are made also with padding and in another dtype
    bias: Tensor | None  # (V,), likewise in at least float32

    def finished(self, head: Head) -> "Gradients":
        """In the shapes and dtypes of the head's own."""
        hidden, weight, bias = self
        if weight is not None:
            weight = weight[: head.labels].to(head.weight.dtype)
        if bias is not None and head.bias is not None:
            bias = bias.to(head.bias.dtype)
        return Gradients(hidden, weight, bias)


def new_gradients(head: Head, wanted: Wanted, labels: int, dtype: torch.dtype) -> Gradients:
    """Memory for gradients, rows first; zeros for the bias."""
    hidden, weight, first = head.hidden, head.weight, torch.contiguous_format
    return Gradients(
        torch.empty_like(hidden, memory_format=first) if wanted[0] else None,
        weight.new_empty((labels, weight.shape[1]), dtype=dtype) if wanted[1] else None,
        weight.new_zeros(head.labels, dtype=head.exact) if wanted[2] else None,
    )
