"""Options of the label encoder beyond the paper: what each computes, and how it starts."""

import pytest
import torch
from torch import Tensor, nn

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
    "gate": {"gate": "scalar"},
    "gate between": {"gate": "scalar", "residual_between": True},
    "gate per label": {"gate": "label", "activation": "relu", "norm": "rms"},
    "correction alone": {"depth": 0, "correction": 3},
    "correction": {"correction": 3, "gate": "scalar"},
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


@pytest.mark.parametrize("gate", ["scalar", "label"])
def test_a_gate_leads_from_weight_tying_to_the_layer_without_it(embedding, gate):
    gated, deep = DeepResidual(embedding, depth=2, gate=gate), DeepResidual(embedding, depth=2)
    gated.maps.load_state_dict(deep.maps.state_dict())
    for g in (0.0, 0.25, 1.0):
        nn.init.constant_(gated.gates, g)
        torch.testing.assert_close(gated.labels(), torch.lerp(embedding.weight, deep.labels(), g))


def test_a_frequency_gate_leaves_frequent_labels_tied(embedding):
    counts = torch.zeros(V)
    counts[1], counts[2] = 50.0, 1e12
    layer = DeepResidual(embedding, depth=1, gate="frequency", gate_count=50, counts=counts)
    assert [name for name, _ in layer.named_parameters() if "gate" in name] == []
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


def test_the_gates_of_new_labels_are_the_mean(embedding):
    layer = DeepResidual(embedding, depth=1, gate="label")
    nn.init.uniform_(layer.gates)
    before, gates = layer.gates.detach().clone(), layer.gates
    layer.resize(V + 2)
    assert layer.gates is gates
    torch.testing.assert_close(gates[V:], before.mean().expand(2))
    layer.resize(V - 1)
    assert torch.equal(gates, before[: V - 1])


@pytest.mark.parametrize("options", [{"depth": 0}, {"dropout": 0.5}, {"center": True}])
def test_a_correction_starts_at_zero_and_has_a_row_per_label(embedding, options):
    layers = []
    for rank in (0, 3):
        torch.manual_seed(1)
        layers.append(DeepResidual(embedding, correction=rank, **options).eval())
    plain, layer = layers
    assert torch.equal(layer.labels(), plain.labels())  # the maps start as without it
    A, B = layer.correction_embeddings, layer.correction_map
    assert (A.shape, B.shape) == ((V, 3), (3, D))
    nn.init.uniform_(A)
    expected = A @ B - (A @ B).mean(0) * layer.center
    torch.testing.assert_close(layer.labels() - plain.labels(), expected)
    rows = torch.tensor([3, 0, 3])
    torch.testing.assert_close(layer.labels(rows), layer.labels()[rows])


def test_new_labels_have_no_correction(embedding):
    layer = DeepResidual(embedding, depth=0, correction=3)
    A = nn.init.uniform_(layer.correction_embeddings)
    before = A.detach().clone()
    layer.resize(V + 2)
    assert layer.correction_embeddings is A
    assert torch.equal(A, torch.cat([before, torch.zeros(2, 3)]))
    layer.resize(V - 1)
    assert torch.equal(A, before[: V - 1])


@pytest.mark.parametrize("depth", [0, 2])
def test_centred_labels_have_mean_zero_and_the_same_probabilities(embedding, depth):
    embedding.double()
    centred = DeepResidual(embedding, depth=depth, center=True)
    plain = DeepResidual(embedding, depth=depth)
    plain.maps.load_state_dict(centred.maps.state_dict())
    hidden = torch.randn(6, D, dtype=torch.float64)
    torch.testing.assert_close(centred.labels().mean(0), torch.zeros(D, dtype=torch.float64))
    torch.testing.assert_close(centred.log_probs(hidden), plain.log_probs(hidden))


def noise(layer: DeepResidual, hidden: Tensor) -> float:
    """Relative error of bfloat16 logits less their mean, which softmax ignores."""
    with torch.no_grad():
        exact = layer.double().logits(hidden.double())
        with torch.autocast("cpu", torch.bfloat16):
            found = layer.float().logits(hidden).double()
    exact, found = (x - x.mean(-1, keepdim=True) for x in (exact, found))
    return ((found - exact).norm() / exact.norm()).item()


def test_centring_keeps_the_offset_of_sigmoid_out_of_bfloat16():
    embedding = nn.Embedding(500, 64)
    nn.init.normal_(embedding.weight, std=64**-0.5)
    torch.manual_seed(0)
    hidden, deep = torch.randn(100, 64), DeepResidual(embedding, depth=2)
    plain, tied = noise(deep, hidden), noise(DeepResidual(embedding, depth=0), hidden)
    deep.center = True
    assert noise(deep, hidden) < 1.3 * tied < 0.5 * plain


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"center": True}, "centred"),
        ({"norm": "rms", "residual_between": True}, "residual_between"),
        ({"block": "mlp", "residual_between": True}, "block='mlp'"),
    ],
)
def test_fused_kernels_leave_these_options_to_the_reference(embedding, options, reason):
    layer = DeepResidual(embedding, depth=2, impl="triton", **options)
    with pytest.raises(ValueError, match=reason):
        layer.labels()
