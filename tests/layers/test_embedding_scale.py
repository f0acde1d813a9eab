"""A warning at the first loss of tied labels that were initialised by nn.Embedding's default."""

import math

import pytest
import torch
from torch import Tensor, nn

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


def words(width: int = WIDTH, std: float = 1.0, labels: int = 500, **factory) -> nn.Embedding:
    torch.manual_seed(0)
    embedding = nn.Embedding(labels, width, **factory)
    nn.init.normal_(embedding.weight, std=std)
    return embedding


def step(layer: nn.Module) -> Tensor:
    weight = layer.label_weight
    hidden = torch.randn(5, layer.hidden_size, device=weight.device, dtype=weight.dtype)
    return layer.nll(hidden, torch.arange(5, device=weight.device))


@pytest.mark.parametrize("width", [8, WIDTH])
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
def test_an_embedding_of_the_default_start_is_warned_of_once(build, width):
    layer = build(words(width))
    with pytest.warns(UserWarning, match=f"in {width} dimensions") as caught:
        step(layer)
    assert [each.filename for each in caught] == [__file__]  # the line that asks for the loss
    step(layer)
    step(TiedSoftmax(getattr(layer, "layer", layer).embedding))


def drifted(width: int) -> nn.Embedding:
    """As trained: frequent words grow, rare ones shrink."""
    embedding = words(width)
    scaled = embedding.weight.detach() * torch.linspace(0.2, 2.0, 500)[:, None]
    embedding.weight.data = scaled / scaled.std()
    return embedding


def uniform(width: int) -> nn.Embedding:
    embedding = words(width)
    nn.init.uniform_(embedding.weight, -math.sqrt(3), math.sqrt(3))
    return embedding


QUIET = {
    "small": lambda: DeepResidual(words(std=0.05)),
    "large": lambda: DeepResidual(words(std=1.2)),
    **{f"uniform {w}": lambda w=w: TiedSoftmax(uniform(w)) for w in (8, WIDTH)},
    **{f"trained {w}": lambda w=w: TiedSoftmax(drifted(w)) for w in (8, WIDTH)},
    "full": lambda: FullSoftmax(words()),
    "dual": lambda: DualNonlinear(words()),
    "narrow": lambda: TiedSoftmax(words(width=4)),
    "few numbers": lambda: TiedSoftmax(words(width=8, labels=100)),
    "evaluation": lambda: TiedSoftmax(words()).eval(),
    "frozen": lambda: TiedSoftmax(words()).requires_grad_(False),
    "meta": lambda: TiedSoftmax(words(device="meta")),
    "descriptions": lambda: TiedSoftmax(
        Descriptions(nn.Linear(3, WIDTH), torch.randn(500, 3), WIDTH)
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_it_does_not_warn_of_other_embeddings(name):
    step(QUIET[name]())


def test_weights_that_are_swapped_in_are_not_read():
    """Of many models at once no number can be read back."""
    model, hidden = TiedSoftmax(words(), bias=False), torch.randn(5, WIDTH)
    model.forward = lambda hidden: model.nll(hidden, torch.arange(5), impl="reference")
    stacked = {"embedding.weight": torch.stack([model.label_weight.detach()] * 3)}
    losses = torch.func.vmap(lambda weights: torch.func.functional_call(model, weights, (hidden,)))
    assert losses(stacked).shape == (3,)
