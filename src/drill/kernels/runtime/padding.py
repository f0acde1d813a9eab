"""Rows aligned for cuBLAS and TMA."""

import torch
from torch import Tensor

ALIGN = {"cpu": 1, "cuda": 64}
"""Rows of logits are padded to this many elements: cuBLAS is fast only on aligned rows. A CPU's
oneDNN, on the other hand, reads the padding of bfloat16 rows, and NaN there spoils the product."""


def without_padding(padded: Tensor, labels: int) -> Tensor:
    """The first rows, in the same memory, but not as a view: autograd forbids writing to those."""
    first = padded.new_empty(0)
    return first.set_(padded.untyped_storage(), 0, (labels, padded.shape[1]), padded.stride())


def followed_by_zeros(weight: Tensor) -> Tensor:
    """Mark labels (V, k) as followed by zero rows in their memory, up to ``aligned``.

    ``with_padding`` then finds these rows, and the loss need not copy the labels to align them.
    """
    weight._zeros_follow = weight.data_ptr()  # type: ignore[attr-defined]
    return weight


def with_padding(weight: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Labels of this dtype together with the zero rows that follow them; None if not marked.

    The mark is the address, because ``.data`` may have been replaced since.
    """
    marked: int | None = getattr(weight, "_zeros_follow", None)
    if marked is None or marked != weight.data_ptr() or weight.dtype != dtype:
        return None
    labels, width = weight.shape
    return weight.detach().as_strided((aligned(labels, weight.device.type), width), (width, 1))


def aligned(width: int, device: str) -> int:
    align = ALIGN.get(device, ALIGN["cuda"])
    return -(-width // align) * align
