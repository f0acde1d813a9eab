"""Every layer with every option, by name: each suite of this folder runs each row.

A new layer or option gets a row here and is tested; ``test_contract.py`` fails without one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import INTERPRETED, TRITON_INSTALLED
from drill.layers import LAYERS, Descriptions, FeatureBags, MatrixLayer, OutputLayer

V, D, H, J = 11, 4, 5, 3  # labels, label width, a hidden width and a joint width unlike it


@dataclass(frozen=True)
class Case:
    layer: str  # its name in LAYERS
    options: dict[str, Any]  # beyond the embedding or the wrapped layer
    build: Callable[[nn.Embedding], OutputLayer]


def row(layer: str, **options: Any) -> Case:
    return Case(layer, options, partial(LAYERS[layer], **options))


def described(source: Callable[[], Descriptions | FeatureBags], layer: str, **options: Any) -> Case:
    return Case(layer, options, lambda _: LAYERS[layer](source(), **options))


def over(inner: Case, layer: str, **options: Any) -> Case:
    return Case(layer, options, lambda embedding: LAYERS[layer](inner.build(embedding), **options))


class Entries(nn.Module):
    """Encodes a label's description as the mean of its words, moved by a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, D, mode="mean")
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, entries: Tensor) -> Tensor:
        return self.words(entries) * self.scale


def dictionary() -> Descriptions:
    entries = torch.randint(20, (V, 3), generator=torch.Generator().manual_seed(0))
    return Descriptions(Entries(), entries, D)


def features() -> Descriptions:
    rows = torch.randn(V, 6, generator=torch.Generator().manual_seed(0))
    return Descriptions(nn.Sequential(nn.Linear(6, D), nn.Tanh()), rows, D)


def bags() -> FeatureBags:
    labels = [[[i % 7, (i + 1) % 7], [7] if i % 2 else []] for i in range(V)]
    return FeatureBags(labels, 8, D)


COUNTS = [9, 8, 2, 7, 5, 6, 4, 3, 1, 0, 0]  # not the order of the ids
drop = {"dropout": 0.5}
gate: dict[str, Any] = {"gate": "frequency", "gate_count": 3.0, "counts": COUNTS}
tied = row("tied")
dual = row("dual", hidden_size=H, joint_size=J)
deep = row("deep-residual", depth=2)
deep_locked = row("deep-residual", depth=2, locked=True, **drop)

CASES: dict[str, Case] = {
    "full": row("full"),
    "full of other width": row("full", hidden_size=H),
    "full without bias": row("full", bias=False, init_range=0.3),
    "full from a number": Case("full", {"hidden_size": H}, lambda _: LAYERS["full"](V, H)),
    "tied": tied,
    "tied without bias": row("tied", bias=False),
    "tied over descriptions": described(features, "tied"),
    "bilinear": row("bilinear", hidden_size=H),
    "bilinear without bias": row("bilinear", bias=False),
    "bilinear residual": row("bilinear", residual=True, init_range=0.3),
    "bilinear map bias": row("bilinear", hidden_size=H, map_bias=True),
    "bilinear locked": row("bilinear", hidden_size=H, locked=True, **drop),
    "bilinear standard output": row("bilinear", locked=False, dropout_at="output", **drop),
    "dual": dual,
    "dual relu": row("dual", hidden_size=H, joint_size=J, activation="relu"),
    "dual residual": row("dual", residual=True, init_range=0.3),
    "dual without map bias": row("dual", hidden_size=H, joint_size=J, map_bias=False),
    "dual without bias": row("dual", hidden_size=H, joint_size=J, bias=False),
    "dual locked": row("dual", hidden_size=H, joint_size=J, locked=True, **drop),
    "dual standard output": row("dual", locked=False, dropout_at="output", **drop),
    "deep residual 0": row("deep-residual", depth=0),
    "deep residual 1": row("deep-residual", depth=1),
    "deep residual 2": deep,
    "deep norm": row("deep-residual", depth=4, norm="rms", init_range=0.3),
    "deep residual relu": row("deep-residual", depth=2, activation="relu"),
    "deep zero start": row("deep-residual", depth=2, activation="tanh", zero_start=True),
    "deep mlp": row("deep-residual", depth=2, activation="gelu", block="mlp", **drop),
    "deep mlp zero start": row(
        "deep-residual", depth=1, activation="silu", norm="rms", block="mlp", zero_start=True
    ),
    "deep gate": row("deep-residual", depth=2, **gate),
    "deep mlp gate": row(
        "deep-residual", depth=2, activation="silu", norm="rms", block="mlp", **gate
    ),
    "deep of other width": row("deep-residual", hidden_size=H, depth=2, residual=False),
    "deep between": row("deep-residual", depth=3, residual_between=True),
    "deep only between": row("deep-residual", depth=3, residual=False, residual_between=True),
    "deep residual locked": deep_locked,
    "deep residual standard": row("deep-residual", depth=2, locked=False, **drop),
    "deep residual locked output": row(
        "deep-residual", depth=2, locked=True, dropout_at="output", **drop
    ),
    "deep residual standard output": row(
        "deep-residual", depth=2, locked=False, dropout_at="output", **drop
    ),
    "deep residual reference encoder": row("deep-residual", depth=2, impl="reference"),
    "deep residual without map bias": row("deep-residual", depth=2, map_bias=False),
    "deep residual without bias": row("deep-residual", depth=2, bias=False),
    "deep residual over descriptions": described(dictionary, "deep-residual", depth=2),
    "deep residual over descriptions in bags": described(bags, "deep-residual", depth=2),
    "mixture of tied": over(tied, "mixture", experts=3),
    "mixture of one": over(tied, "mixture", experts=1, init_range=0.3),
    "mixture of deep residual": over(deep_locked, "mixture", experts=2, hidden_size=H),
    "mixture of dual": over(dual, "mixture", experts=2),
    "mixture locked": over(tied, "mixture", experts=2, locked=True, **drop),
    "mixture standard": over(deep, "mixture", experts=2, locked=False, **drop),
    "sampled tied": over(tied, "sampled", samples=6),
    "sampled deep residual": over(
        deep_locked, "sampled", samples=6, proposal="uniform", counts=COUNTS
    ),
    "sampled deep gate": over(row("deep-residual", depth=2, **gate), "sampled", samples=6),
    "adaptive tied": over(tied, "adaptive", cutoffs=[3, 6], reduction_factor=2.0),
    "adaptive tied without bias": over(row("tied", bias=False), "adaptive", cutoffs=[4]),
    "adaptive deep residual": over(
        deep_locked, "adaptive", cutoffs=[3, 7], reduction_factor=1.0, counts=COUNTS
    ),
    "adaptive dual": over(dual, "adaptive", cutoffs=[5], reduction_factor=1.5, counts=COUNTS),
    "sigsoftmax": over(tied, "sigsoftmax"),
    "sigsoftmax of dual": over(dual, "sigsoftmax"),
    "plif without bias": over(row("tied", bias=False), "plif", pieces=7, limit=3.0),
    "plif of deep residual": over(deep_locked, "plif", pieces=40, limit=2.0),
    "softcap": over(tied, "softcap", cap=1.5),
    "mixtape of one gate": over(tied, "mixtape", experts=2, gates=1, init_range=0.3),
    "mixtape of deep residual": over(
        deep_locked, "mixtape", gate_size=2, hidden_size=H, gates=4, counts=COUNTS
    ),
    "mixtape of dual": over(dual, "mixtape", experts=8, locked=False, **drop),
    "doc of one state": over(tied, "doc", experts=[2], init_range=0.3, locked=False, **drop),
    "doc of deep residual": over(deep_locked, "doc", experts=[2, 0, 1], widths=[3, 2, 6]),
}
if TRITON_INSTALLED and INTERPRETED:  # on a GPU its kernels take no CPU tensors: test_modes.py
    at_output = {"locked": False, "dropout_at": "output", **drop}
    fused = row("deep-residual", depth=2, impl="triton", **at_output)
    CASES |= {
        "deep residual fused": row("deep-residual", depth=2, impl="triton", **drop),
        "deep residual fused, gate": row("deep-residual", depth=2, impl="triton", **gate),
        "mixture of fused": over(fused, "mixture", experts=2),
    }


def make(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> OutputLayer:
    """The layer of a row in eval mode; no parameter is zero, so a forgotten one shows."""
    return model(name, dtype, seed).layer


class Model(nn.Module):
    """What holds an embedding and an output layer over it, as a language model does."""

    def __init__(self, embedding: nn.Embedding, layer: OutputLayer) -> None:
        super().__init__()
        self.embedding = embedding
        self.layer = layer

    def forward(self, hidden: Tensor, targets: Tensor, **options: Any) -> Tensor:
        return self.layer.nll(hidden, targets, **options)


def skip_if_not_written_for(dtype: torch.dtype, name: str) -> None:
    if dtype == torch.float64 and "fused" in name:
        pytest.skip("the Triton kernels are not written for float64")


def model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    skip_if_not_written_for(dtype, name)
    embedding = nn.Embedding(V, D)
    built = Model(embedding, CASES[name].build(embedding))
    generator = torch.Generator().manual_seed(seed)
    for parameter in built.parameters():
        drawn = torch.empty(parameter.shape).uniform_(-0.7, 0.7, generator=generator)
        parameter.data = drawn.to(parameter.device)
    return built.to(dtype).eval()


def matrix_of(layer: OutputLayer) -> MatrixLayer:
    """The layer itself, or the matrix layer it wraps."""
    return layer if isinstance(layer, MatrixLayer) else layer.layer


def batch(layer: OutputLayer, *lead: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Hidden states (..., h), wanting a gradient, and targets (...)."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(layer.parameters()).dtype
    hidden = torch.randn(*lead, layer.hidden_size, generator=generator).to(dtype)
    targets = torch.randint(layer.vocabulary_size, lead, generator=generator)
    return hidden.requires_grad_(), targets


def given(
    name: str, *lead: int, dtype: torch.dtype = torch.float32, train: bool = False
) -> tuple[OutputLayer, Tensor, Tensor]:
    """The layer of a row, hidden states and targets."""
    layer = make(name, dtype).train(train)
    return layer, *batch(layer, *lead)


def gradients(loss: Tensor, layer: OutputLayer, hidden: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter and of hidden, by name."""
    leaves = {"hidden": hidden, **dict(layer.named_parameters())}
    found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
    return dict(zip(leaves, found, strict=True))


def assert_same_loss(found: Tensor, truth: Tensor, layer: OutputLayer, hidden: Tensor) -> None:
    """Equal losses with equal gradients."""
    torch.testing.assert_close(found, truth)
    grads = (gradients(loss.sum(), layer, hidden) for loss in (found, truth))
    torch.testing.assert_close(*grads)


def drawing(names: Any) -> list[str]:
    """The rows with dropout."""
    return [name for name in names if any(getattr(m, "dropout", 0) for m in make(name).modules())]


MATRIX = [name for name in CASES if isinstance(make(name), MatrixLayer)]
WRAPPERS = [name for name in CASES if name not in MATRIX]
ONE_EACH = ["full of other width", "tied", "bilinear map bias", "dual", "deep residual 2"]
ONE_EACH += [
    f"{wrapper} deep residual"
    for wrapper in ("mixture of", "sampled", "adaptive", "plif of", "mixtape of", "doc of")
]
"""For suites that cost seconds a row; sigsoftmax and softcap differ from plif in one line."""

every_case = pytest.mark.parametrize("name", CASES)
every_matrix_case = pytest.mark.parametrize("name", MATRIX)
one_of_each_layer = pytest.mark.parametrize("name", ONE_EACH)
