"""What the layers have in common with each other, and with the paper's equations and counts."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drill.layers import (
    Bilinear,
    DeepResidual,
    DirectOutputConnection,
    DualNonlinear,
    FullSoftmax,
    Mixtape,
    MixtureOfSoftmaxes,
    OutputLayer,
    PiecewiseLinearSoftmax,
    SigSoftmax,
    SoftcappedSoftmax,
    TiedSoftmax,
)
from drill.layers.label_map import Activation
from tests.layers.table import given, matrix_of


@pytest.fixture
def embedding():
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    return nn.Embedding(50, 8, _weight=rows)


def set_map(layer: OutputLayer, U: Tensor, bias: float | Tensor | None = None) -> None:
    """Give every label map of the layer the matrix U (as E U) and a bias."""
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = U.T.contiguous()
            if module.bias is not None and bias is not None:
                module.bias.data = torch.as_tensor(bias).expand_as(module.bias).clone()


# -- one layer is another -----------------------------------------------------------------------


def test_depth_zero_is_weight_tying(embedding):
    deep, tied = DeepResidual(embedding, depth=0), TiedSoftmax(embedding)
    hidden = torch.randn(6, 8)
    assert deep.labels() is tied.labels() is embedding.weight
    assert torch.equal(deep.log_probs(hidden), tied.log_probs(hidden))
    assert [n for n, _ in deep.named_parameters()] == [n for n, _ in tied.named_parameters()]


def test_one_linear_map_without_bias_or_residual_is_bilinear(embedding):
    deep = DeepResidual(embedding, 5, depth=1, activation="none", residual=False)
    bilinear = Bilinear(embedding, 5)
    U = torch.randn(8, 5)
    set_map(deep, U, bias=0.0)
    set_map(bilinear, U)
    torch.testing.assert_close(deep.labels(), embedding.weight @ U)
    assert torch.equal(deep.labels(), bilinear.labels())


@pytest.mark.parametrize("activation", get_args(Activation))
def test_depth_one_without_residual_encodes_labels_as_the_dual_map_does(embedding, activation):
    deep = DeepResidual(embedding, 5, depth=1, activation=activation, residual=False)
    dual = DualNonlinear(embedding, 7, 5, activation=activation)
    dual.label_map.load_state_dict(deep.maps[0].state_dict())
    assert torch.equal(deep.labels(), dual.labels())


@pytest.mark.parametrize(
    "head",
    [PiecewiseLinearSoftmax, lambda tied: SoftcappedSoftmax(tied, 1e9), SigSoftmax],
    ids=["plif at its start", "softcap of no limit", "sigsoftmax of large logits"],
)
def test_a_map_of_logits_becomes_the_identity(embedding, head):
    tied = TiedSoftmax(embedding).double()
    layer = head(tied)
    hidden = torch.randn(6, 8, dtype=torch.float64)
    if isinstance(layer, SigSoftmax):
        tied.bias.data.fill_(99.0)  # sigmoid(z) = 1
    torch.testing.assert_close(layer.log_probs(hidden), tied.log_probs(hidden))


def test_mixtape_of_equal_experts_or_of_one_is_one_softmax(embedding):
    tied = TiedSoftmax(embedding).double()
    layer = Mixtape(tied, experts=4, init_range=1.0, gates=20).double()
    hidden, first = torch.randn(6, 8, dtype=torch.float64), nn.Linear(8, 8).double()
    first.weight.data, first.bias.data = layer.latent.weight[:8], layer.latent.bias[:8]
    truth = tied.log_probs(torch.tanh(first(hidden)))
    assert not torch.allclose(layer.log_probs(hidden), truth)
    layer.gate_bias.data.fill_(99.0)  # all gates open to the left: the first expert
    torch.testing.assert_close(layer.log_probs(hidden), truth)
    layer.gate_bias.data.zero_()
    layer.latent.weight.data = first.weight.repeat(4, 1)
    layer.latent.bias.data = first.bias.repeat(4)
    torch.testing.assert_close(layer.log_probs(hidden), truth)


def test_direct_output_of_the_last_state_is_a_mixture(embedding):
    tied = TiedSoftmax(embedding)
    doc, mixture = DirectOutputConnection(tied, [0, 3], [5, 8]), MixtureOfSoftmaxes(tied, 3)
    doc.prior.load_state_dict(mixture.prior.state_dict())
    doc.latents["1"].load_state_dict(mixture.latent.state_dict())
    hidden = torch.randn(6, 13)
    assert torch.equal(doc.log_probs(hidden), mixture.log_probs(hidden[:, 5:]))
    one = DirectOutputConnection(tied, [1])
    truth = tied.log_probs(torch.tanh(one.latents["0"](hidden[:, 5:])))
    torch.testing.assert_close(one.log_probs(hidden[:, 5:]), truth)


# -- the recurrence, with masks given -------------------------------------------------------------


def recurrence(E, maps, masks, act, dropout_at, residual, residual_between):  # type: ignore[no-untyped-def]
    """E^(depth) as the equations say it, in numpy."""
    X = E
    for i, ((U, b), mask) in enumerate(zip(maps, masks, strict=True)):
        Y = act((X * mask) @ U + b) if dropout_at == "input" else act(X @ U + b) * mask
        if residual_between and i > 0:
            Y = Y + X
        if residual:
            Y = Y + E
        X = Y
    return X


ACTIVATIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "none": lambda x: x,
}


@pytest.mark.parametrize("dropout_at", ["input", "output"])
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("residual_between", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_labels_follow_the_recurrence_with_given_masks(
    embedding, monkeypatch, dropout_at, locked, residual, residual_between, activation
):
    embedding.double()
    options = {"activation": activation, "dropout": 0.5, "locked": locked}
    where = {"dropout_at": dropout_at, "residual": residual, "residual_between": residual_between}
    layer = DeepResidual(
        embedding, depth=3, init_range=0.5, impl="reference", **options, **where
    ).double()
    masks = [torch.randint(2, (1 if locked else 50, 8)).double() * 2 for _ in range(3)]
    given, asked = iter(masks), []

    def draw_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        asked.append((tuple(shape), p))
        return next(given)

    monkeypatch.setattr("drill.layers.label_map.draw_mask", draw_mask)
    with torch.no_grad():
        found = layer.train().labels().numpy()
        maps = [(f.linear.weight.numpy().T, f.linear.bias.numpy()) for f in layer.maps]
        E = embedding.weight.numpy()
    truth = recurrence(E, maps, [mask.numpy() for mask in masks], ACTIVATIONS[activation], **where)
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-12)
    assert asked == [((1 if locked else 50, 8), 0.5)] * 3


@pytest.mark.parametrize("map_bias", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_the_bilinear_map_is_its_equation(embedding, residual, map_bias):
    layer = Bilinear(embedding, residual=residual, map_bias=map_bias)
    E, f = embedding.weight, layer.label_map.linear
    truth = E @ f.weight.T + (f.bias if map_bias else 0) + (E if residual else 0)
    torch.testing.assert_close(layer.labels(), truth)


@pytest.mark.parametrize("map_bias", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_both_sides_of_the_dual_map_are_their_equations(embedding, residual, map_bias):
    layer = DualNonlinear(embedding, residual=residual, map_bias=map_bias, activation="sigmoid")
    hidden = torch.randn(3, 6, 8)

    def side(X: Tensor, f: nn.Linear) -> Tensor:
        Y = torch.sigmoid(X @ f.weight.T + (f.bias if map_bias else 0))
        return Y + X if residual else Y

    torch.testing.assert_close(layer.labels(), side(embedding.weight, layer.label_map.linear))
    torch.testing.assert_close(layer.context(hidden), side(hidden, layer.context_map.linear))


def test_dropout_of_a_dual_map_leaves_contexts_alone():
    layer, hidden, _ = given("dual locked", 6, train=True)
    assert torch.equal(layer.context(hidden), layer.context(hidden))


# -- where training starts ----------------------------------------------------------------------


def fills(tensor: Tensor, bound: float) -> bool:
    """Uniform in +-bound, as far as the extremes and the mean show."""
    return (
        0.9 * bound < tensor.max() <= bound
        and -bound <= tensor.min() < -0.9 * bound
        and tensor.mean().abs() < 0.2 * bound
    )


@pytest.mark.parametrize("init_range", [0.1, 0.02])
@pytest.mark.parametrize("build", [DeepResidual, Bilinear, DualNonlinear])
def test_maps_start_uniform_in_their_range_and_output_biases_at_zero(build, init_range):
    torch.manual_seed(0)
    layer = build(nn.Embedding(30, 64), init_range=init_range, map_bias=True)
    maps = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    assert maps
    for f in maps:
        assert fills(f.weight, init_range)
        assert fills(f.bias, 1 / math.sqrt(64))
    assert not layer.bias.any()


def test_a_full_softmax_and_a_mixture_start_uniform_in_their_range():
    torch.manual_seed(0)
    full = FullSoftmax(100, 64)
    assert fills(full.weight, 0.1)
    assert not full.bias.any()
    mixture = MixtureOfSoftmaxes(full, experts=15)
    assert fills(mixture.prior.weight, 0.1)
    assert fills(mixture.latent.weight, 0.1)


def test_building_a_layer_leaves_the_embedding_as_it_is(embedding):
    before = embedding.weight.detach().clone()
    for build in (TiedSoftmax, Bilinear, DualNonlinear, DeepResidual, FullSoftmax):
        matrix_of(build(embedding)).labels()
    assert torch.equal(embedding.weight, before)


# -- rank ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "rank"),
    [
        (lambda tied: tied, 8 + 2),  # of the product, the bias and the normaliser
        (lambda tied: DeepResidual(tied.embedding, depth=2), 8 + 1),  # its bias is still zero
        (lambda tied: PiecewiseLinearSoftmax(tied), 8 + 2),  # the identity, at its start
        (lambda tied: Mixtape(tied, init_range=2.0, gates=1), 8 + 2),  # one context of all labels
        (lambda tied: MixtureOfSoftmaxes(tied, 3, 8, init_range=2.0), 50),
        (lambda tied: DirectOutputConnection(tied, [1, 2], [4, 4], init_range=2.0), 50),
        (lambda tied: Mixtape(tied, init_range=2.0), 50),
        (lambda tied: Mixtape(tied, init_range=2.0, gates=20), 8 + 2 + 19),
        (lambda tied: SigSoftmax(tied), 50),
        (lambda tied: SoftcappedSoftmax(tied), 50),
        (lambda tied: kinked(PiecewiseLinearSoftmax(tied, 20)), 50),
    ],
)
def test_one_softmax_has_rank_d_plus_2_and_these_heads_more(embedding, build, rank):
    tied = TiedSoftmax(embedding).double()
    torch.manual_seed(0)
    nn.init.normal_(tied.bias)
    layer = build(tied).double()
    torch.manual_seed(1)
    log_probs = layer.log_probs(torch.randn(60, layer.hidden_size, dtype=torch.float64))
    assert torch.linalg.matrix_rank(log_probs, rtol=1e-9) == rank


def kinked(layer: PiecewiseLinearSoftmax) -> PiecewiseLinearSoftmax:
    nn.init.normal_(layer.slopes)
    return layer
