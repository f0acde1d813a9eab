"""The parameters of one LSTM layer, as all implementations take them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """As of ``nn.LSTM``, gates in the order i, f, g, o; o is the hidden size."""

    w_ih: Tensor  # (4 o, i)
    w_hh: Tensor  # (4 o, o)
    b_ih: Tensor  # (4 o,)
    b_hh: Tensor  # (4 o,)


class Layer(NamedTuple):
    """The state and the weights of a layer."""

    h: Tensor  # (B, o)
    c: Tensor  # (B, o)
    weights: Weights

    @property
    def hidden(self) -> int:
        return self.h.shape[1]


def by_layer(given: Sequence[Tensor]) -> list[Layer]:
    """Layers from a flat sequence of h, c and the four weights of each."""
    sixes = (given[i : i + 6] for i in range(0, len(given), 6))
    return [Layer(h, c, Weights(*weights)) for h, c, *weights in sixes]


class Gradients(NamedTuple):
    """Gradients of the weights, one for both biases."""

    w_ih: Tensor
    w_hh: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, like: Weights, device: torch.device) -> "Gradients":
        """Empty row-major tensors of these shapes and dtypes, whatever the layout."""
        return cls(*(torch.empty(w.shape, dtype=w.dtype, device=device) for w in like[:3]))
