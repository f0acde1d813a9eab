"""A layer over a model's embedding needs no .to(): it is made where the embedding is."""

import pytest
import torch
from torch import nn

from drill.layers import (
    DeepResidual,
    Descriptions,
    MatrixLayer,
    OutputLayer,
    SampledSoftmax,
    TiedSoftmax,
)
from tests.layers.table import CASES, D, V, one_of_each_layer, skip_if_not_written_for

HALVES = [torch.bfloat16, torch.float16]
OVER_AN_EMBEDDING = [n for n in CASES if "descriptions" not in n and n != "full from a number"]


@pytest.fixture(params=HALVES, ids=str)
def half_by_default(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def trains_and_answers_in(dtype: torch.dtype, layer: OutputLayer) -> None:
    """Parameters, gradients and the folded head are of this dtype, losses float32 at least."""
    exact = torch.promote_types(dtype, torch.float32)
    assert {p.dtype for p in layer.parameters()} == {dtype}
    hidden = torch.randn(3, 2, layer.hidden_size, dtype=dtype, requires_grad=True)
    for impl in ("reference", "chunked"):
        loss = layer.train().nll(hidden, torch.arange(6).view(3, 2), impl=impl)
        loss.backward()
        assert loss.dtype == exact
        assert loss.isfinite()
        assert {p.grad.dtype for p in [hidden, *layer.parameters()]} == {dtype}
    with torch.no_grad(), layer.eval().cached_labels():
        assert layer.log_probs(hidden).dtype == exact
    if isinstance(layer, MatrixLayer):
        assert {p.dtype for p in layer.fold().parameters()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", OVER_AN_EMBEDDING)
def test_a_layer_is_made_where_its_embedding_is(name, dtype):
    skip_if_not_written_for(dtype, name)
    torch.manual_seed(0)
    trains_and_answers_in(dtype, CASES[name].build(nn.Embedding(V, D, dtype=dtype)))


@pytest.mark.parametrize("name", OVER_AN_EMBEDDING)
def test_a_layer_is_made_and_trained_on_the_cpu_whatever_the_default_device(name):
    with torch.device("meta"):  # which shows every tensor made without a place
        layer = CASES[name].build(nn.Embedding(V, D, device="cpu")).train()
        assert {tensor.device.type for tensor in layer.parameters()} == {"cpu"}
        hidden = torch.randn(6, layer.hidden_size, device="cpu")
        for impl in ("reference", "chunked"):
            layer.nll(hidden, torch.arange(6, device="cpu"), impl=impl).backward()
        assert {p.grad.device.type for p in layer.parameters()} == {"cpu"}


@one_of_each_layer
def test_a_layer_can_be_made_and_trained_under_a_half_precision_default(name, half_by_default):
    torch.manual_seed(0)
    trains_and_answers_in(half_by_default, CASES[name].build(nn.Embedding(V, D)))


@pytest.mark.usefixtures("half_by_default")
def test_counts_are_ranked_as_they_are_whatever_the_default_dtype():
    counts = [5000.0 + label for label in range(V)]  # all alike in half precision
    layer = SampledSoftmax(TiedSoftmax(nn.Embedding(V, D)), counts=counts)
    assert layer.ranking.ids.tolist() == list(range(V))[::-1]


@pytest.mark.parametrize("name", OVER_AN_EMBEDDING)
def test_a_layer_is_made_on_the_device_of_its_embedding(name):
    layer = CASES[name].build(nn.Embedding(V, D, device="meta"))
    assert all(tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers()))


def test_descriptions_place_a_layer_like_their_encoder():
    encoder = nn.Linear(3, D, dtype=torch.float64)
    layer = DeepResidual(Descriptions(encoder, torch.randn(V, 3, dtype=torch.float64), D))
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
