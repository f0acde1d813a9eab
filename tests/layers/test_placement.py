"""A layer over a model's embedding needs no .to(): it is made where the embedding is."""

import pytest
import torch
from torch import nn

from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    Descriptions,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    TiedSoftmax,
)
from tests.layers.table import D, V


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_layer_is_made_where_its_embedding_is(dtype):
    embedding = nn.Embedding(V, D, dtype=dtype)
    layers = [
        FullSoftmax(embedding),
        Bilinear(embedding, 5),
        DualNonlinear(embedding, 5, 3),
        DeepResidual(embedding),
        MixtureOfSoftmaxes(DeepResidual(embedding), 2, 5),
        AdaptiveSoftmax(TiedSoftmax(embedding), [2, 4]),
    ]
    for layer in layers:
        assert {p.dtype for p in layer.parameters()} == {dtype}
        loss = layer.nll(torch.randn(3, layer.hidden_size, dtype=dtype), torch.arange(3))
        loss.backward()


@pytest.mark.gpu
def test_a_layer_is_made_on_the_device_of_its_embedding():
    embedding = nn.Embedding(V, D, device="cuda")
    for layer in (DeepResidual(embedding), MixtureOfSoftmaxes(Bilinear(embedding), 2)):
        assert {p.device.type for p in layer.parameters()} == {"cuda"}


def test_descriptions_place_a_layer_like_their_encoder():
    encoder = nn.Linear(3, D, dtype=torch.float64)
    layer = DeepResidual(Descriptions(encoder, torch.randn(V, 3, dtype=torch.float64), D))
    assert {p.dtype for p in layer.parameters()} == {torch.float64}


def test_layers_can_be_made_under_a_half_precision_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        embedding = nn.Embedding(V, D)
        layer = AdaptiveSoftmax(DeepResidual(embedding), [2, 4], reduction_factor=2.0)
        layer.nll(torch.randn(3, D), torch.arange(3)).backward()
    finally:
        torch.set_default_dtype(before)
