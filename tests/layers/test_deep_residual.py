"""Options of the label encoder beyond the paper: what each computes, and how it starts."""

import pytest
import torch
from torch import nn

from drill.layers import DeepResidual, TiedSoftmax
from drill.layers.deep_residual import ZERO_AT_ZERO

V, D = 40, 16


@pytest.fixture
def embedding() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(V, D, _weight=torch.empty(V, D).uniform_(-0.3, 0.3))


STARTS = {
    **{each: {"activation": each, "zero_start": True} for each in ZERO_AT_ZERO},
    "mlp": {"block": "mlp", "zero_start": True},
    "mlp of rms": {"block": "mlp", "norm": "rms", "activation": "silu", "zero_start": True},
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", STARTS)
def test_zero_starts_are_weight_tying_that_learns(embedding, name, autocast):
    deep = DeepResidual(embedding, **{"depth": 2, **STARTS[name]})
    tied = TiedSoftmax(embedding)
    hidden, targets = torch.randn(6, D), torch.arange(6)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(deep.logits(hidden), tied.logits(hidden))
        assert torch.equal(deep.nll(hidden, targets), tied.nll(hidden, targets))
        deep.nll(hidden, targets).backward()
    with torch.no_grad():
        for parameter in deep.parameters():
            parameter -= 0.1 * parameter.grad
    deep.zero_grad()
    deep.nll(hidden, targets).backward()
    assert all(parameter.grad.any() for parameter in deep.parameters())  # after one step


def test_an_mlp_block_follows_its_equation(embedding):
    deep = DeepResidual(embedding, depth=1, activation="silu", norm="rms", block="mlp")
    E, f = embedding.weight, deep.maps[0]
    X = E / (E.square().mean(1, keepdim=True) + 1e-5).sqrt()
    P = X @ f.linear.weight.T + f.linear.bias
    torch.testing.assert_close(deep.labels(), P * P.sigmoid() @ f.output.weight.T + E)


def test_a_frequency_gate_leaves_frequent_labels_tied(embedding):
    counts = torch.zeros(V)
    counts[1], counts[2] = 50.0, 1e12
    layer = DeepResidual(embedding, depth=1, gate="frequency", gate_count=50, counts=counts)
    map_of = layer.labels() - embedding.weight
    deep = layer.maps[0](embedding.weight)
    torch.testing.assert_close(map_of[0], deep[0])
    torch.testing.assert_close(map_of[1], deep[1] / 2)
    torch.testing.assert_close(map_of[2], torch.zeros(D), atol=1e-6, rtol=0)
    layer.resize(V + 2)  # training has not seen the new ones
    assert layer.gates[V:].tolist() == [1.0, 1.0]
    start = {"zero_start": True, "activation": "silu", "block": "mlp"}
    tied = DeepResidual(embedding, gate="frequency", counts=torch.zeros(V + 2), **start)
    assert torch.equal(tied.labels(), embedding.weight)
