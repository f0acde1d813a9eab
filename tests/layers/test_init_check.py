"""Labels that start as nn.Embedding leaves them: one sentence, and only to whom it concerns."""

import math

import pytest
import torch
from torch import nn

from drill import (
    Bilinear,
    DeepResidual,
    Descriptions,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)

WIDTH = 128
SENTENCE = r"standard deviation \d\.\d\d in 128 dimensions, .*uniform_\(embedding\.weight, -0\.1"


def words(width: int = WIDTH, std: float = 1.0, **place: object) -> nn.Embedding:
    torch.manual_seed(0)
    embedding = nn.Embedding(500, width, **place)
    nn.init.normal_(embedding.weight, std=std)
    return embedding


def step(layer: nn.Module, **options: object) -> torch.Tensor:
    weight = layer.label_weight
    hidden = torch.randn(5, layer.hidden_size, device=weight.device, dtype=weight.dtype)
    return layer.nll(hidden, torch.arange(5, device=weight.device), **options)


@pytest.mark.parametrize(
    "build",
    [
        TiedSoftmax,
        Bilinear,
        DeepResidual,
        lambda embedding: MixtureOfSoftmaxes(TiedSoftmax(embedding), experts=2),
        lambda embedding: SampledSoftmax(DeepResidual(embedding), samples=9),
    ],
)
def test_tied_labels_of_the_default_start_are_told_once(build):
    layer = build(words())
    with pytest.warns(UserWarning, match=SENTENCE) as told:
        step(layer)
    assert len(told) == 1
    step(layer)
    step(TiedSoftmax(matrix(layer).embedding))  # the embedding was told of already


def matrix(layer: nn.Module) -> nn.Module:
    return getattr(layer, "layer", layer)


def test_it_names_the_line_that_asks_for_the_loss():
    with pytest.warns(UserWarning, match=SENTENCE) as told:
        step(TiedSoftmax(words()))
    assert told[0].filename == __file__


@pytest.mark.parametrize("std", [0.05, 0.5, 0.85, 1.2, 10.0])
def test_another_deviation_is_somebodys_choice(std):
    step(DeepResidual(words(std=std)))


def test_a_mean_is_not_of_the_default_start():
    embedding = words()
    with torch.no_grad():
        embedding.weight += 0.5
    step(TiedSoftmax(embedding))


@pytest.mark.parametrize("build", [FullSoftmax, DualNonlinear])
def test_labels_that_do_not_grow_with_the_embedding_are_not_told(build):
    step(build(words()))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_every_width_where_the_first_loss_is_far_above_a_guess_is_told(width):
    layer, targets = TiedSoftmax(words(width)), torch.arange(500)
    with pytest.warns(UserWarning, match=f"in {width} dimensions"):
        loss = layer.nll(torch.randn(500, width), targets)  # as of a normalisation
    assert loss > math.log(500) + 2


def test_the_narrowest_embeddings_do_little_harm():
    step(TiedSoftmax(words(width=4)))


def test_of_a_few_numbers_nobody_knows_how_they_were_drawn():
    torch.manual_seed(0)
    step(TiedSoftmax(nn.Embedding(100, 8)))


@pytest.mark.parametrize("width", [8, 32, 128])
def test_a_uniform_start_of_the_same_deviation_is_somebodys_choice(width):
    embedding = words(width)
    nn.init.uniform_(embedding.weight, -math.sqrt(3), math.sqrt(3))
    step(TiedSoftmax(embedding))


@pytest.mark.parametrize("width", [8, 32, 128])
def test_vectors_whose_norms_have_drifted_apart_are_trained(width):
    embedding = words(width)
    with torch.no_grad():  # frequent words grow, rare ones shrink
        embedding.weight *= torch.linspace(0.2, 2.0, 500)[:, None]
        embedding.weight /= embedding.weight.std()
    step(TiedSoftmax(embedding))


def test_a_model_that_is_initialised_or_loaded_after_it_is_built_is_not_told():
    layer = DeepResidual(words())
    layer.load_state_dict(DeepResidual(words(std=0.1)).state_dict())
    step(layer)


def test_evaluation_and_frozen_vectors_are_not_told():
    step(TiedSoftmax(words()).eval())
    with torch.no_grad():
        step(TiedSoftmax(words()))
    frozen = TiedSoftmax(words())
    frozen.embedding.weight.requires_grad_(False)
    step(frozen)


def test_without_checks_nothing_is_read_back():
    step(TiedSoftmax(words()), check=False)


def test_meta_tensors_and_other_sources_have_nothing_to_look_at():
    step(TiedSoftmax(words(device="meta")))
    step(TiedSoftmax(Descriptions(nn.Linear(3, WIDTH), torch.randn(500, 3), WIDTH)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_is_told_in_every_precision(dtype):
    with pytest.warns(UserWarning, match="standard deviation"):
        step(TiedSoftmax(words(dtype=dtype)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = TiedSoftmax(words(), bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head.nll(hidden, torch.arange(5), impl="reference")


def test_weights_that_are_swapped_in_are_not_read():
    """Of many models at once no number can be read back."""
    model, hidden = Model(), torch.randn(5, WIDTH)
    stacked = {"head.embedding.weight": torch.stack([model.head.label_weight.detach()] * 3)}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (hidden,))

    (found,) = torch.func.vmap(torch.func.grad(loss))(stacked).values()
    assert found.shape == (3, 500, WIDTH)
    assert torch.equal(found[0], found[2])
