"""Which linear parts have to be called: where none has, a locked mask drops rows of U."""

import pytest
import torch
from torch import nn

from drill.layers.label_map import LabelMap

V, D_IN, D_OUT = 30, 8, 5


class Adapter(nn.Linear):
    """Stands for what fine-tuning puts in the place of a linear map."""


@pytest.mark.parametrize(
    "kind",
    ["plain", "hook", "adapter", "half precision", "autocast", "single labels", "few labels"],
)
def test_only_a_linear_part_that_has_to_be_called_reads_dropped_labels(kind, monkeypatch):
    dtype = torch.bfloat16 if kind == "half precision" else torch.float32
    f = LabelMap(D_IN, D_OUT, activation="tanh", dropout=0.4, init_range=0.5, dtype=dtype)
    mask = (torch.arange(D_IN) % 3 != 0)[None] / 0.6
    if kind == "adapter":
        f.linear = Adapter(D_IN, D_OUT)
    if kind == "single labels":
        mask = mask.expand(V, D_IN)
    f.draw_mask = lambda _: mask
    seen = []
    if kind == "hook":
        f.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    else:  # on the class: on the instance it would count as a hook
        call = nn.Linear.forward
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: seen.append(x) or call(self, x))
    X = torch.randn(D_OUT if kind == "few labels" else V, D_IN, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        f(X)
    if kind == "plain":
        assert not seen  # V rows would be masked
    else:
        assert torch.equal(seen[0], (X * mask).to(dtype))
