"""Which linear parts have to be called: where only weights count, a locked mask drops rows of U."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from drill.layers.checks import hooked, only_weights_count
from drill.layers.label_map import LabelMap, MapOptions

V, D_IN, D_OUT = 30, 8, 5


class Adapter(nn.Linear):
    """Stands for what fine-tuning puts in the place of a linear map."""


@pytest.mark.parametrize(
    "kind",
    ["plain", "hook", "adapter", "half precision", "autocast", "single labels", "few labels"],
)
def test_only_a_linear_part_that_has_to_be_called_reads_dropped_labels(kind, monkeypatch):
    dtype = torch.bfloat16 if kind == "half precision" else torch.float32
    factory = {"device": torch.device("cpu"), "dtype": dtype}
    f = LabelMap(D_IN, D_OUT, MapOptions("a test", "tanh", 0.4, True, "input", 0.5, True, factory))
    mask = (torch.arange(D_IN) % 3 != 0)[None] / 0.6
    if kind == "adapter":
        f.linear = Adapter(D_IN, D_OUT)
    if kind == "single labels":
        mask = mask.expand(V, D_IN)
    seen = []
    if kind == "hook":
        f.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    else:  # on the class: on the instance it would count as a hook
        call = nn.Linear.forward
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: seen.append(x) or call(self, x))
    X = torch.randn(D_OUT if kind == "few labels" else V, D_IN, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        f(X, mask)
    if kind == "plain":
        assert not seen  # V rows would be masked
    else:
        assert torch.equal(seen[0], (X * mask).to(dtype))


@pytest.mark.parametrize("of", ["forward_hook", "forward_pre_hook", "full_backward_hook",
                                "full_backward_pre_hook"])  # fmt: skip
@pytest.mark.parametrize("whose", ["its own", "all modules'"])
def test_a_hook_has_to_be_called(of, whose):
    linear = nn.Linear(2, 2)
    assert only_weights_count(linear, nn.Linear)
    if whose == "its own":
        hook = getattr(linear, f"register_{of}")(lambda *_: None)
    else:
        hook = getattr(torch_module, f"register_module_{of}")(lambda *_: None)
    try:
        assert hooked(linear)
        assert not only_weights_count(linear, nn.Linear)
    finally:
        hook.remove()
    assert only_weights_count(linear, nn.Linear)
