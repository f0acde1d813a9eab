"""A warning at the first loss of tied labels that were initialised by nn.Embedding's default."""

import math
from collections.abc import Callable

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
MESSAGE = r"uniform_\(embedding\.weight, -0\.1"


def words(width: int = WIDTH, std: float = 1.0, **factory: object) -> nn.Embedding:
    torch.manual_seed(0)
    embedding = nn.Embedding(500, width, **factory)
    nn.init.normal_(embedding.weight, std=std)
    return embedding


def step(layer: nn.Module, **options: object) -> Tensor:
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
def test_an_embedding_of_the_default_start_is_warned_of_once(build):
    layer = build(words())
    with pytest.warns(UserWarning, match=MESSAGE) as caught:
        step(layer)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the line that asks for the loss
    step(layer)
    step(TiedSoftmax(getattr(layer, "layer", layer).embedding))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_it_warns_at_every_width_whose_first_loss_is_far_above_ln_v(width):
    layer, targets = TiedSoftmax(words(width)), torch.arange(500)
    with pytest.warns(UserWarning, match=f"in {width} dimensions"):
        loss = layer.nll(torch.randn(500, width), targets)  # as after a normalisation
    assert loss > math.log(500) + 2


def changed(change: Callable[[Tensor], object], width: int = WIDTH) -> TiedSoftmax:
    embedding = words(width)
    with torch.no_grad():
        change(embedding.weight)
    return TiedSoftmax(embedding)


def drifted(weight: Tensor) -> None:
    """As trained: frequent words grow, rare ones shrink."""
    weight *= torch.linspace(0.2, 2.0, 500)[:, None]
    weight /= weight.std()


def uniform(weight: Tensor) -> None:
    nn.init.uniform_(weight, -math.sqrt(3), math.sqrt(3))


QUIET: dict[str, Callable[[], nn.Module]] = {
    **{f"std {x}": lambda x=x: DeepResidual(words(std=x)) for x in (0.05, 0.5, 0.85, 1.2, 10.0)},
    **{f"uniform {w}": lambda w=w: changed(uniform, w) for w in (8, 32, 128)},
    **{f"trained {w}": lambda w=w: changed(drifted, w) for w in (8, 32, 128)},
    "a mean": lambda: changed(lambda weight: weight.add_(0.5)),
    "full": lambda: FullSoftmax(words()),
    "dual": lambda: DualNonlinear(words()),
    "narrow": lambda: TiedSoftmax(words(width=4)),
    "few numbers": lambda: TiedSoftmax(nn.Embedding(100, 8)),
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
    stacked = {"embedding.weight": torch.stack([model.label_weight.detach()] * 3)}
    model.forward = lambda hidden: model.nll(hidden, torch.arange(5), impl="reference")

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (hidden,))

    (found,) = torch.func.vmap(torch.func.grad(loss))(stacked).values()
    assert found.shape == (3, 500, WIDTH)
    assert torch.equal(found[0], found[2])
