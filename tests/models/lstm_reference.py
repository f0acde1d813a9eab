"""Dropouts of AWD-LSTM, all off, and the equations of an LSTM."""

import torch
from torch import Tensor, nn

OFF = dict.fromkeys(
    ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output", "weight_drop"), 0.0
)


def reference_lstm(
    x: Tensor,
    lstm: nn.LSTM,
    mask: Tensor | None = None,
    capped: bool = False,
    w_hh: Tensor | None = None,
) -> Tensor:
    """One step at a time; nothing dropped but by the mask of the state or in the given weights."""
    h = c = x.new_zeros(x.shape[1], lstm.hidden_size)
    U, steps = lstm.weight_hh_l0 if w_hh is None else w_hh, []
    for x_t in x:
        read = h if mask is None else h * mask
        gates = x_t @ lstm.weight_ih_l0.T + lstm.bias_ih_l0 + read @ U.T + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4, dim=1)
        i, f = i.sigmoid(), f.sigmoid()
        i = torch.where(i < 1 - f, i, 1 - f) if capped else i
        c = f * c + i * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    return torch.stack(steps)
