"""The counted costs against the paper's closed forms, on sizes that share no factor by accident."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from drill import (
    LAYERS,
    AdaptiveSoftmax,
    DeepResidual,
    DualNonlinear,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)
from drill.layers.cost import FORMULAE, cost, example_layers, zipf_counts

V, d, h, j, k, K, N = 507, 24, 40, 12, 3, 5, 33

CLOSED_FORMS = {  # own parameters, FLOPs of one nll forward and backward
    "full": (V * h + V, 6 * N * V * h),
    "tied": (V, 6 * N * V * d),
    "bilinear": (d * h + V, 6 * N * V * h + 6 * V * d * h),
    "dual": (d * j + j * h + 2 * j + V, 6 * N * V * j + 6 * V * d * j + 6 * N * h * j),
    "deep-residual": (k * (d * d + d) + V, 6 * N * V * d + k * 6 * V * d * d),
    "mixture": (h * K + (h * d + d) * K + V, K * (6 * N * V * d + 6 * N * h * d + 6 * N * h)),
}


@pytest.fixture(scope="module")
def layers():
    return example_layers(V, d, h, depth=k, experts=K, joint=j)


def test_every_layer_has_a_row(layers):
    assert list(layers) == list(LAYERS)
    assert list(FORMULAE) == list(LAYERS)
    for name, layer in layers.items():
        assert type(layer) is LAYERS[name]


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_costs_follow_the_closed_forms(layers, name):
    counted = cost(layers[name], N)
    assert (counted.parameters, counted.train_flops) == CLOSED_FORMS[name]
    assert counted.folded == (name != "mixture")  # which pays for every expert
    if name == "mixture":
        assert counted.inference_flops == K * (2 * N * V * d + 2 * N * h * d + 2 * N * h)


@pytest.mark.parametrize("name", ["full", "tied", "bilinear", "dual", "deep-residual"])
def test_inference_costs_what_the_folded_head_costs(layers, name):
    layer = layers[name]
    head, hidden = layer.fold(), torch.empty(N, layer.hidden_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        head(layer.context(hidden))
    assert cost(layer, N).inference_flops == counter.get_total_flops()


def test_a_mixture_encodes_deep_labels_once():
    deep = DeepResidual(nn.Embedding(V, d), depth=k)
    over_deep = cost(MixtureOfSoftmaxes(deep, K), N)
    over_tied = cost(MixtureOfSoftmaxes(TiedSoftmax(nn.Embedding(V, d)), K), N)
    assert over_deep.parameters - over_tied.parameters == k * (d * d + d)
    assert over_deep.train_flops - over_tied.train_flops == k * 6 * V * d * d
    assert over_deep.inference_flops == over_tied.inference_flops


def test_a_sampled_softmax_encodes_and_scores_only_what_it_needs():
    deep, S = DeepResidual(nn.Embedding(V, d), depth=k), 17
    counted = cost(SampledSoftmax(deep, S), N)
    assert counted.train_flops == 6 * N * S * d + k * 6 * (N + S) * d * d
    assert counted.parameters == cost(deep, N).parameters
    assert counted.inference_flops == cost(deep, N).inference_flops
    assert counted.folded
    assert cost(SampledSoftmax(deep, S).eval(), N) == counted


def test_an_adaptive_softmax_is_counted_as_it_runs():
    embedding = nn.Embedding(V, d)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    layer = AdaptiveSoftmax(TiedSoftmax(embedding), [30, 200])
    counts = zipf_counts(layer, N)
    first, second = counts
    assert first > second > 0
    targets = torch.tensor([3] * (N - first - second) + [100] * first + [300] * second)
    hidden = torch.randn(N, d, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer.nll(hidden, targets, impl="reference").backward()
    counted = cost(layer, N)
    assert counted.train_flops == counter.get_total_flops()
    assert counted.parameters == V + 2 * (d + 1) + 2 * d * (d // 4 + round(d / 16))
    assert not counted.folded
    head, narrow = 2 * N * d * (30 + 2), zip((170, V - 200), (d // 4, round(d / 16)), strict=True)
    assert counted.inference_flops == head + sum(2 * N * k_i * (d + V_i) for V_i, k_i in narrow)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_costs_the_same_in_bfloat16(layers, name):
    assert cost(copy.deepcopy(layers[name]).bfloat16(), N) == cost(layers[name], N)


def test_the_fused_encoder_costs_what_the_loop_costs(layers):
    fused = DeepResidual(nn.Embedding(V, d), depth=k, impl="triton")
    assert cost(fused, N) == cost(layers["deep-residual"], N)
    assert fused.impl == "triton"


def test_a_layer_in_use_is_left_as_it_was():
    layer = DualNonlinear(nn.Embedding(V, d), h, j)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    cost(layer, N)
    for name, parameter in layer.named_parameters():
        assert parameter.device.type == "cpu"
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("name", LAYERS)
def test_absurd_sizes_are_counted_without_memory(name):
    layer = example_layers(10**7, 10**5, 10**5, depth=4, experts=15, joint=10**5)[name]
    assert cost(layer, 1400).train_flops > 0  # its weights would take terabytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clusters_on_meta_are_those_of_a_built_layer(dtype):
    """The one layer whose start is not made where it has no memory."""
    built, counted = (
        AdaptiveSoftmax(TiedSoftmax(nn.Embedding(V, d, device=device, dtype=dtype)), [30, 200])
        for device in ("cpu", "meta")
    )
    shapes = [{n: (p.shape, p.dtype) for n, p in x.named_parameters()} for x in (built, counted)]
    assert shapes[0] == shapes[1]
    assert all(p.is_meta for p in counted.parameters())
    assert cost(built, N) == cost(counted, N)
