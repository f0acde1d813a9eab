"""The embedding and the layer over it stay one, through resizing, moving, copying and saving."""

import copy

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from drill.layers import FeatureBags, OutputLayer, TiedSoftmax
from drill.layers.label_source import Descriptions
from tests.layers.table import (
    CASES,
    D,
    Model,
    V,
    batch,
    every_case,
    matrix_of,
    model,
    one_of_each_layer,
)


def is_tied(built: Model) -> bool:
    return matrix_of(built.layer).label_weight is built.embedding.weight


TIED = [name for name in CASES if is_tied(model(name))]
every_tied_case = pytest.mark.parametrize("name", TIED)


def source(layer: OutputLayer) -> nn.Embedding | Descriptions | FeatureBags:
    return matrix_of(layer).embedding


def resize(layer: OutputLayer, size: int, vectors: Tensor | None = None) -> None:
    """Resize any row; other label sources than embeddings are extended first."""
    origin = source(layer)
    if not isinstance(origin, nn.Embedding) and size < V:
        with pytest.raises(ValueError, match="cannot lose labels"):
            layer.resize(size)
        pytest.skip("a label source only grows")
    if isinstance(origin, Descriptions):
        origin.extend(origin.descriptions[: size - V])
        vectors = None
    elif isinstance(origin, FeatureBags):
        origin.extend([[[0], [3]]] * (size - V))
        vectors = None
    layer.resize(size, vectors)


@pytest.mark.parametrize("size", [V - 3, V, V + 4])
@every_case
def test_resizing_keeps_every_label_that_stays(name, size):
    built = model(name)
    layer = built.layer
    hidden, _ = batch(layer, 6)
    inner, kept = matrix_of(layer), min(V, size)
    objects = list(inner.parameters())
    vectors = inner.label_weight.detach().clone()
    labels = inner.labels().detach()
    bias = None if inner.bias is None else inner.bias.detach().clone()
    resize(layer, size)
    assert layer.vocabulary_size == source(layer).num_embeddings == size
    assert torch.equal(inner.label_weight[:kept], vectors[:kept])
    torch.testing.assert_close(inner.labels()[:kept], labels[:kept])
    if bias is not None:
        assert torch.equal(inner.bias[:kept], bias[:kept])
        torch.testing.assert_close(inner.bias[kept:], bias.mean().expand(size - kept))
    assert all(a is b for a, b in zip(inner.parameters(), objects, strict=True))
    assert is_tied(built) == (name in TIED)
    assert layer.log_probs(hidden).shape == (6, size)


@every_tied_case
def test_new_labels_start_at_the_mean_or_at_the_given_vectors(name):
    built = model(name)
    mean = built.embedding.weight.mean(0)
    built.layer.resize(V + 2)
    torch.testing.assert_close(built.embedding.weight[V:], mean.expand(2, D))
    vectors = torch.randn(3, D)
    built.layer.resize(V + 5, vectors)
    assert torch.equal(built.embedding.weight[V + 2 :], vectors)
    assert built.embedding(torch.tensor([V + 4])).shape == (1, D)


@pytest.mark.parametrize("size", [V - 3, V + 4])
@one_of_each_layer
def test_training_goes_on_after_resizing_while_an_old_graph_exists(name, size):
    built = model(name, torch.float64)
    layer = built.layer
    hidden, _ = batch(layer, 8)
    targets = torch.arange(8) % size
    targets[-1] = size - 1
    old = layer.nll(hidden, torch.zeros(8, dtype=torch.long))
    old.backward(retain_graph=True)
    resize(layer, size)
    assert all(p.grad is None or p.grad.shape == p.shape for p in layer.parameters())
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = layer.nll(hidden, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert old.isfinite()
    assert is_tied(built) == (name in TIED)


def test_a_bias_follows_an_embedding_that_was_swapped_for_a_larger_one():
    built = model("tied")
    bias = built.layer.bias.detach().clone()
    built.embedding.weight = nn.Parameter(torch.randn(V + 2, D))
    built.layer.resize(V + 2)
    assert built.layer.log_probs(torch.randn(3, D)).shape == (3, V + 2)
    assert torch.equal(built.layer.bias[:V], bias)


def test_masked_labels_do_not_mask_the_new_ones():
    layer = TiedSoftmax(nn.Embedding(V, D))
    layer.bias.data[3] = -torch.inf
    layer.resize(V + 2)
    assert layer.bias[V:].isfinite().all()


def test_shrinking_below_the_padding_row_leaves_the_embedding_usable():
    embedding = nn.Embedding(V, D, padding_idx=V - 1)
    TiedSoftmax(embedding).resize(V - 3)
    assert embedding(torch.tensor([0])).shape == (1, D)


@pytest.mark.parametrize("overwrite", [False, True])
@every_tied_case
def test_the_tie_survives_a_copy_and_a_change_of_dtype(name, overwrite):
    built = model(name)
    double = copy.deepcopy(built)
    torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
    try:
        double.to(torch.float64)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert is_tied(double)
    assert double.embedding.weight is not built.embedding.weight
    assert {p.dtype for p in double.parameters()} == {torch.float64}


@pytest.mark.parametrize("assign", [False, True])
@every_tied_case
def test_the_tie_survives_loading_a_state(name, assign):
    built, other = model(name), model(name, seed=1)
    hidden, _ = batch(built.layer, 6)
    built.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    if assign:
        built.requires_grad_()
    assert torch.equal(built.layer.log_probs(hidden), other.layer.log_probs(hidden))
    assert is_tied(built)


@every_tied_case
def test_the_layer_follows_a_swapped_embedding_parameter(name):
    built = model(name)
    hidden, targets = batch(built.layer, 6)
    before = built.layer.log_probs(hidden)
    built.embedding.weight = nn.Parameter(torch.randn(V, D))
    assert is_tied(built)
    assert not torch.equal(built.layer.log_probs(hidden), before)
    built.layer.nll(hidden, targets).backward()
    assert built.embedding.weight.grad.any()


@pytest.mark.gpu
@one_of_each_layer
def test_a_model_moves_to_the_gpu_whole(name):
    built = model(name)
    hidden, targets = batch(built.layer, 6)
    here = built.layer.nll(hidden, targets)
    tied = is_tied(built)
    built.cuda()
    assert is_tied(built) == tied
    there = built.layer.nll(hidden.cuda(), targets.cuda())
    there.backward()
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-3)
    assert all(p.grad.is_cuda for p in built.layer.parameters())


@every_case
def test_a_model_saved_and_loaded_answers_bit_for_bit(name, tmp_path):
    built, other = model(name), model(name, seed=1)
    hidden, _ = batch(built.layer, 6)
    truth = built.layer.log_probs(hidden)
    assert not torch.equal(other.layer.log_probs(hidden), truth)
    save_model(built, str(tmp_path / "model.safetensors"))
    assert load_model(other, tmp_path / "model.safetensors") == (set(), [])
    assert torch.equal(other.layer.log_probs(hidden), truth)
    assert is_tied(other) == (name in TIED)
