"""The parameters of one LSTM layer, as every implementation of it is given them."""

from typing import NamedTuple

from torch import Tensor


class Weights(NamedTuple):
    """As of ``nn.LSTM``, gates in the order i, f, g, o; o is the hidden size."""

    w_ih: Tensor  # (4 o, i)
    w_hh: Tensor  # (4 o, o)
    b_ih: Tensor  # (4 o,)
    b_hh: Tensor  # (4 o,)
