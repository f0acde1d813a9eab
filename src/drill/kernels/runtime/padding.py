"""Rows aligned for cuBLAS and TMA."""

import torch
from torch import Tensor

ALIGN = {"cpu": 1, "cuda": 64}
"""Rows of logits are padded to this many elements: cuBLAS is fast only on aligned rows. A CPU's
oneDNN, on the other hand, reads the padding of bfloat16 rows, and NaN there spoils the product."""


def without_padding(padded: Tensor, labels: int) -> Tensor:
    """The first rows, in the same memory, but no view: autograd lets no view be written to."""
    first = padded.new_empty(0)
    return first.set_(padded.untyped_storage(), 0, (labels, padded.shape[1]), padded.stride())


def followed_by_zeros(weight: Tensor) -> Tensor:
    """Says of labels (V, k) that zero rows follow in their memory, up to ``aligned``.

    Who makes labels anyway makes them so; ``with_padding`` finds them, and the loss copies nothing.
    """
    weight._zeros_follow = weight.data_ptr()  # type: ignore[attr-defined]
    return weight


def with_padding(weight: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Labels of this dtype together with the zero rows that follow them; None if none are said to.

    The word counts for the memory it was given for: ``.data`` may have been replaced since.
    """
    said: int | None = getattr(weight, "_zeros_follow", None)
    if said is None or said != weight.data_ptr() or weight.dtype != dtype:
        return None
    labels, width = weight.shape
    return weight.detach().as_strided((aligned(labels, weight.device.type), width), (width, 1))


def aligned(width: int, device: str) -> int:
    align = ALIGN.get(device, ALIGN["cuda"])
    return -(-width // align) * align
