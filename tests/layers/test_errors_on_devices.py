"""Every kind of wrong input raises its sentence on every device, which works on afterwards.

A kernel that reads out of bounds fails an assert on the GPU: from then on every call of the process
fails, wherever it comes from. So each of these tests computes something on the device at the end.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import TRITON_INSTALLED
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    OutputLayer,
    SampledSoftmax,
    TiedSoftmax,
)
from tests.layers.table import D, H, V, make, matrix_of, one_of_each_layer
from tests.layers.test_errors import METHODS, ask, one_sentence

DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str
)
ELSEWHERE = {"cpu": "meta", "cuda": "cpu"}


@contextmanager
def refused(device: str, error: type[Exception], *words: object) -> Iterator[None]:
    with one_sentence(error, *words):
        yield
    still_works(device)


def still_works(device: str) -> None:
    a = torch.eye(4, device=device)
    assert torch.equal(a @ a, a)
    if device == "cuda":
        torch.cuda.synchronize()


def given(name: str, device: str) -> tuple[OutputLayer, Tensor, Tensor]:
    layer = make(name).to(device)
    hidden = torch.randn(3, 2, layer.hidden_size, device=device, requires_grad=True)
    return layer, hidden, torch.arange(6, device=device).view(3, 2)


# -- hidden and targets -------------------------------------------------------------------------

HIDDEN: dict[str, tuple[Callable[[Tensor, str], Tensor], type[Exception], str]] = {
    "another width": (lambda h, _: h[..., 1:], ValueError, "does not end in hidden_size"),
    "no dimension": (lambda h, _: h[0, 0, 0], ValueError, "hidden ()"),
    "ids": (lambda h, _: h.long(), TypeError, "floating point, not torch.int64"),
    "float64": (lambda h, _: h.double(), TypeError, "torch.float64"),
    "half precision": (lambda h, _: h.half(), TypeError, "torch.float16"),
    "another device": (lambda h, d: h.to(ELSEWHERE[d]), ValueError, "move one with .to()"),
}


@METHODS
@pytest.mark.parametrize("wrong", HIDDEN)
@one_of_each_layer
@DEVICES
def test_hidden_states(device, name, wrong, method):
    layer, hidden, _ = given(name, device)
    change, error, words = HIDDEN[wrong]
    with refused(device, error, words):
        ask(layer, method, change(hidden, device))


def with_one(targets: Tensor, wrong: int) -> Tensor:
    return torch.where(torch.arange(6, device=targets.device).view(3, 2) == 3, wrong, targets)


TARGETS: dict[str, tuple[Callable[[Tensor, str], Tensor], type[Exception], str]] = {
    "another shape": (lambda y, _: y.T, ValueError, "targets (2, 3) do not match"),
    "fractions": (lambda y, _: y.float(), TypeError, "integer label ids, not torch.float32"),
    "booleans": (lambda y, _: y > 2, TypeError, "integer label ids, not torch.bool"),
    "another device": (lambda y, d: y.to(ELSEWHERE[d]), ValueError, "move one with .to()"),
    "too high": (lambda y, _: with_one(y, V), IndexError, f"hold {V} at [1, 1]"),
    "far too high": (lambda y, _: with_one(y, 2**40), IndexError, f"hold {2**40} at [1, 1]"),
    "negative": (lambda y, _: with_one(y, -1), IndexError, "hold -1 at [1, 1]"),
}


def implementations(device: str) -> list[str]:
    found = ["auto", "reference", "chunked"]
    return [*found, "triton"] if device == "cuda" and TRITON_INSTALLED else found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", TARGETS)
@one_of_each_layer
@DEVICES
def test_targets(device, name, wrong, training):
    layer, hidden, targets = given(name, device)
    layer.train(training)
    change, error, words = TARGETS[wrong]
    for impl in implementations(device):
        with refused(device, error, words):
            layer.nll(hidden, change(targets, device), impl=impl)
    assert layer.nll(hidden, targets).isfinite()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", [V, 2**40, -1])
@one_of_each_layer
@DEVICES
def test_unchecked_targets_out_of_range_are_nan_and_touch_no_foreign_memory(
    device, name, wrong, training
):
    layer, hidden, targets = given(name, device)
    layer.train(training)
    for impl in implementations(device):
        losses = layer.nll(
            hidden, with_one(targets, wrong), reduction="none", impl=impl, check=False
        )
        assert losses.isnan().nonzero().tolist() == [[1, 1]]
        losses.nansum().backward()
        still_works(device)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"label_smoothing": math.nan}, ValueError, "label_smoothing lies in [0, 1], not nan"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing lies in [0, 1], not 1.5"),
        ({"memory": math.nan}, TypeError, "memory is a whole number, not nan"),
        ({"memory": 0}, ValueError, "memory is a positive number of bytes, not 0"),
        ({"ignore_index": math.nan}, TypeError, "ignore_index is a whole number, not nan"),
        ({"reduction": "median"}, ValueError, "reduction is one of none, mean, sum"),
        ({"impl": "fast"}, ValueError, "impl is one of auto, reference, chunked, triton"),
    ],
    ids=str,
)
@one_of_each_layer
@DEVICES
def test_settings_of_the_loss(device, name, options, error, words):
    layer, hidden, targets = given(name, device)
    with refused(device, error, words):
        layer.nll(hidden, targets, **options)


@pytest.mark.parametrize("wrong", [V, 2**40, -1])
@one_of_each_layer
@DEVICES
def test_rows_of_labels(device, name, wrong):
    layer = matrix_of(given(name, device)[0])
    with refused(device, IndexError, f"rows hold {wrong} at [1]"):
        layer.labels(torch.tensor([0, wrong], device=device))
    with refused(device, ValueError, "move one with .to()"):
        layer.labels(torch.tensor([0], device=ELSEWHERE[device]))


# -- building and resizing ----------------------------------------------------------------------

BUILDS: dict[str, tuple[Callable[[nn.Embedding], Any], str]] = {
    "depth -1": (lambda E: DeepResidual(E, depth=-1), "depth is a whole number of at least 0"),
    "dropout 1": (lambda E: DeepResidual(E, dropout=1.0), "dropout is a number in [0, 1), not 1.0"),
    "dropout -0.1": (lambda E: Bilinear(E, dropout=-0.1), "dropout is a number in [0, 1)"),
    "dropout NaN": (lambda E: DualNonlinear(E, dropout=math.nan), "in [0, 1), not nan"),
    "a mixture's dropout NaN": (
        lambda E: MixtureOfSoftmaxes(TiedSoftmax(E), 2, dropout=math.nan),
        "in [0, 1), not nan",
    ),
    "init_range NaN": (lambda E: DeepResidual(E, init_range=math.nan), "finite number, not nan"),
    "a full init_range NaN": (lambda E: FullSoftmax(E, init_range=math.nan), "number, not nan"),
    "reduction_factor NaN": (
        lambda E: AdaptiveSoftmax(TiedSoftmax(E), [3], reduction_factor=math.nan),
        "finite number of at least 1, not nan",
    ),
    "counts NaN": (
        lambda E: SampledSoftmax(TiedSoftmax(E), counts=torch.full((V,), math.nan).to(E.weight)),
        "counts[0] is nan",
    ),
    "a cutoff too high": (lambda E: AdaptiveSoftmax(TiedSoftmax(E), [V]), "between 1 and 10"),
    "a width unlike the residual's": (lambda E: DeepResidual(E, H), "hidden_size is 5"),
    "a bilinear one": (lambda E: Bilinear(E, H, residual=True), "the embedding's width 4"),
    "a dual one": (lambda E: DualNonlinear(E, joint_size=3, residual=True), "joint_size is 3"),
    "depth 0 between widths": (
        lambda E: DeepResidual(E, H, depth=0, residual=False),
        "depth 0 is weight tying",
    ),
}


@pytest.mark.parametrize("wrong", BUILDS)
@DEVICES
def test_building_a_layer(device, wrong):
    build, words = BUILDS[wrong]
    with refused(device, ValueError, words):
        build(nn.Embedding(V, D, device=device))


@one_of_each_layer
@DEVICES
def test_resizing_leaves_a_refused_layer_as_it_was(device, name):
    layer, hidden, _ = given(name, device)
    before = layer.log_probs(hidden)
    with refused(device, ValueError, "at least 1" if layer is matrix_of(layer) else "0"):
        layer.resize(0)
    with refused(device, ValueError, f"from {V} to {V + 2} labels needs vectors of shape"):
        layer.resize(V + 2, torch.zeros(1, 1, device=device))
    assert torch.equal(layer.log_probs(hidden), before)
