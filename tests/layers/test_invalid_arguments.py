"""Invalid input raises an error that names the argument, on every device.

A kernel that reads out of bounds fails an assert on the GPU, and from then on every call of the
process fails. So the tests on devices compute something on the device at the end.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drill.errors import ArgumentError
from drill.kernels.runtime.dispatch import TRITON_INSTALLED
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    Descriptions,
    DualNonlinear,
    FullSoftmax,
    Mixtape,
    MixtureOfSoftmaxes,
    OutputLayer,
    SampledSoftmax,
    SoftcappedSoftmax,
    TiedSoftmax,
)
from drill.layers import DirectOutputConnection as Doc
from drill.layers import PiecewiseLinearSoftmax as Plif
from tests.helpers.devices import cpu_and_cuda
from tests.layers.table import CASES, COUNTS, D, H, V, batch, make, matrix_of, one_of_each_layer

NAN = math.nan
E = nn.Embedding(V, D)
METHODS = pytest.mark.parametrize("method", ["log_probs", "logits", "nll"])
RANKED_CLUSTERS = partial(AdaptiveSoftmax, cutoffs=[3, 7], counts=COUNTS)
ELSEWHERE = {"cpu": "meta", "cuda": "cpu"}


@contextmanager
def raises(error: type[Exception], *words: object, device: str = "cpu") -> Iterator[None]:
    """The body raises this error, whose message is one line with these words; the device works."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) in (error, ArgumentError)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"
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


def wrapped(kind: Callable[..., OutputLayer]) -> Callable[..., OutputLayer]:
    return lambda embedding, **options: kind(TiedSoftmax(embedding), **options)


def mixture(layer: nn.Module = E, **options: Any) -> MixtureOfSoftmaxes:
    return MixtureOfSoftmaxes(TiedSoftmax(layer), options.pop("experts", 2), **options)


# -- hidden -------------------------------------------------------------------------------------

Change = Callable[[Tensor, str], Tensor]

HIDDEN: dict[str, tuple[Change, type[Exception], str]] = {
    "another width": (lambda h, _: h[..., 1:], ValueError, "hidden_size"),
    "no dimension": (lambda h, _: h[0, 0, 0], ValueError, "hidden ()"),
    "ids": (lambda h, _: h.long(), TypeError, "torch.int64"),
    "output and state": (lambda h, _: (h, None), TypeError, "(output, state)"),
}


@METHODS
@pytest.mark.parametrize("wrong", HIDDEN)
@one_of_each_layer
@cpu_and_cuda
def test_invalid_hidden_states_raise(device, name, wrong, method):
    layer, hidden, _ = given(name, device)
    change, error, words = HIDDEN[wrong]
    hidden = change(hidden, device)
    shape = hidden.shape[:-1] if isinstance(hidden, Tensor) else (3, 2)
    targets = (torch.zeros(shape, dtype=torch.long, device=device),) if method == "nll" else ()
    with raises(error, words, device=device):
        getattr(layer, method)(hidden, *targets)


@METHODS
@one_of_each_layer
@cpu_and_cuda
def test_hidden_states_of_another_dtype_or_device_raise(device, name, method):
    layer, hidden, targets = given(name, device)
    for other in (hidden.double(), hidden.half(), hidden.to(ELSEWHERE[device])):
        rest = (targets.to(other.device),) if method == "nll" else ()
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"dtype|device|\.to"):
            getattr(layer, method)(other, *rest)
        still_works(device)


# -- targets and the settings of a loss ---------------------------------------------------------


def with_one(targets: Tensor, wrong: int) -> Tensor:
    return torch.where(torch.arange(6, device=targets.device).view(3, 2) == 3, wrong, targets)


TARGETS: dict[str, tuple[Change, type[Exception], str]] = {
    "another shape": (lambda y, _: y.T, ValueError, "targets (2, 3)"),
    "fractions": (lambda y, _: y.float(), TypeError, "torch.float32"),
    "booleans": (lambda y, _: y > 2, TypeError, "torch.bool"),
    "complex": (lambda y, _: y.to(torch.complex64), TypeError, "torch.complex64"),
    "a list": (lambda y, _: y.tolist(), TypeError, "list"),
    "another device": (lambda y, d: y.to(ELSEWHERE[d]), ValueError, ".to()"),
    "too high": (lambda y, _: with_one(y, V), IndexError, f"{V} at [1, 1]"),
    "far too high": (lambda y, _: with_one(y, 2**40), IndexError, f"{2**40} at [1, 1]"),
    "negative": (lambda y, _: with_one(y, -1), IndexError, "-1 at [1, 1]"),
}


def implementations(device: str) -> list[str]:
    found = ["auto", "reference", "chunked"]
    return [*found, "triton"] if device == "cuda" and TRITON_INSTALLED else found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", TARGETS)
@one_of_each_layer
@cpu_and_cuda
def test_invalid_targets_raise(device, name, wrong, training):
    layer, hidden, targets = given(name, device)
    layer.train(training)
    change, error, words = TARGETS[wrong]
    for impl in implementations(device):
        with raises(error, words, device=device):
            layer.nll(hidden, change(targets, device), impl=impl)
    assert layer.nll(hidden, targets).isfinite()


@pytest.mark.parametrize(("training", "smoothing"), [(True, 0.0), (False, 0.0), (False, 0.1)])
@pytest.mark.parametrize("wrong", [V, 2**40, -1])
@one_of_each_layer
@cpu_and_cuda
def test_unchecked_targets_out_of_range_give_nan_and_read_no_other_memory(
    device, name, wrong, training, smoothing
):
    layer, hidden, targets = given(name, device)
    layer.train(training)
    for impl in implementations(device):
        options = {"label_smoothing": smoothing, "impl": impl, "check": False}
        losses = layer.nll(hidden, with_one(targets, wrong), "none", **options)
        assert losses.isnan().nonzero().tolist() == [[1, 1]]
        losses.nansum().backward()
        still_works(device)


SETTINGS = [
    *(({"label_smoothing": x}, ValueError) for x in (NAN, 1.5, -0.1)),
    *(({"label_smoothing": x}, TypeError) for x in (None, "0.1", True, torch.tensor(0.1))),
    ({"memory": 0}, ValueError),
    *(({"memory": x}, TypeError) for x in (NAN, True, np.float64(2.0**20), torch.tensor(2**20))),
    *(({"ignore_index": x}, ValueError) for x in (2**63, -(2**63) - 1)),
    *(({"ignore_index": x}, TypeError) for x in (NAN, None, np.array([1]))),
    ({"reduction": "median"}, ValueError),
    ({"impl": "fast"}, ValueError),
]


@pytest.mark.parametrize(("options", "error"), SETTINGS, ids=str)
@cpu_and_cuda
def test_invalid_settings_of_the_loss_raise(device, options, error):
    for name in ("tied", "mixture of tied"):
        layer, hidden, targets = given(name, device)
        with raises(error, *options, device=device):
            layer.nll(hidden, targets, **options)


@pytest.mark.parametrize("method", ["log_probs", "nll"])
@pytest.mark.parametrize("name", [n for n in CASES if matrix_of(make(n)).bias is not None])
def test_a_bias_of_another_size_raises(name, method):
    layer = make(name)
    matrix_of(layer).bias = nn.Parameter(torch.zeros(V + 1))
    hidden, targets = batch(layer, 3)
    with raises(ValueError, f"({V + 1},)", f"resize({V})"):
        getattr(layer, method)(hidden, *([targets] if method == "nll" else []))


@pytest.mark.parametrize(
    ("build", "bias", "labels", "words"),
    [
        (SampledSoftmax, True, V + 1, [f"resize({V + 1})"]),
        (partial(SampledSoftmax, counts=COUNTS), False, V + 1, [f"resize({V + 1})"]),
        (RANKED_CLUSTERS, True, V + 1, [f"resize({V + 1})"]),
        (RANKED_CLUSTERS, False, V + 1, [f"{V} labels are ranked", f"resize({V + 1})"]),
    ],
)
def test_a_vocabulary_that_changed_without_resize_raises(build, bias, labels, words):
    layer = build(TiedSoftmax(nn.Embedding(V, D), bias=bias))
    layer.layer.embedding.weight = nn.Parameter(torch.zeros(labels, D))
    with raises(ValueError, *words):
        layer.nll(torch.zeros(2, D), torch.zeros(2, dtype=torch.long))


# -- building a layer ---------------------------------------------------------------------------

MAPPED = [Bilinear, DualNonlinear, DeepResidual]
MATRIX = [FullSoftmax, TiedSoftmax, *MAPPED]

OF_MAPS = {
    "dropout": (-0.1, 1.0, NAN),
    "dropout_at": ("between",),
    "init_range": (0.0, NAN, math.inf, "x", True),
    "hidden_size": (0, 2.0, True),
}
OPTIONS: list[tuple[Callable[..., Any], dict[str, Sequence[Any]]]] = [
    *((build, OF_MAPS) for build in MAPPED),
    (FullSoftmax, {"hidden_size": (0,), "init_range": (0.0,)}),
    (DualNonlinear, {"activation": ("swish",), "joint_size": (0, 1.5)}),
    (DeepResidual, dict.fromkeys(("activation", "impl", "norm", "block", "gate"), ("batch",))),
    (DeepResidual, {"depth": (-1, 1.5, True, "2", None, np.float64(2.0)), "gate_count": (0.0,)}),
    (mixture, {"experts": (0, 1.5), "dropout": (1.0,)}),
    (mixture, {"init_range": (0.0,), "hidden_size": (0,)}),
    (wrapped(Mixtape), {"experts": (0, 1, 3, 2.0), "gates": (0, V + 1, 1.5)}),
    (wrapped(Doc), {"experts": ([1, 2], [0], [1.5], [-1], 2)}),
    (wrapped(SampledSoftmax), {"samples": (0, 1.5), "proposal": ("unigram",)}),
    (wrapped(SampledSoftmax), {"counts": (torch.ones(V - 1), torch.ones(V, 1), [NAN] * V)}),
    (
        wrapped(AdaptiveSoftmax),
        {"cutoffs": ([], [7, 3], [3, 3, 7], [0, 3], [3, V], [3, 4.5], [True, 3], 3)},
    ),
    (
        wrapped(partial(AdaptiveSoftmax, cutoffs=[3])),
        {"reduction_factor": (0.5, NAN, math.inf, None, True)},
    ),
    (wrapped(SoftcappedSoftmax), {"cap": (0, -1.0, NAN)}),
    (wrapped(Plif), {"pieces": (0,), "limit": (math.inf,)}),
]
COMBINED: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("hidden_size", lambda _: FullSoftmax(V), {}),
    ("number of labels", lambda _: FullSoftmax(0, H), {}),
    ("counts", wrapped(SampledSoftmax), {"counts": [1, 1, -2] + [1] * (V - 3)}),
    ("counts", DeepResidual, {"gate": "frequency"}),
    ("counts", DeepResidual, {"gate": "frequency", "counts": [1.0]}),
    ("counts", DeepResidual, {"counts": [1.0] * V}),
    ("depth", DeepResidual, {"gate": "frequency", "depth": 0}),
    ("gate", DeepResidual, {"gate": "frequency", "residual": False}),
    ("zero_start", DeepResidual, {"activation": "relu", "zero_start": True}),
    ("hidden_size", DeepResidual, {"hidden_size": H}),
    ("hidden_size", DeepResidual, {"hidden_size": H, "depth": 0, "residual": False}),
    ("hidden_size", Bilinear, {"hidden_size": H, "residual": True}),
    ("joint_size", DualNonlinear, {"joint_size": 3, "residual": True}),
    ("joint_size", DualNonlinear, {"hidden_size": H, "joint_size": D, "residual": True}),
]


@cpu_and_cuda
def test_invalid_options_of_a_layer_raise(device):
    embedding = nn.Embedding(V, D, device=device)
    single = [(k, build, {k: x}) for build, each in OPTIONS for k in each for x in each[k]]
    for key, build, options in (*single, *COMBINED):
        with raises(ValueError, key, device=device):
            build(embedding, **options)


def test_numbers_of_numpy_are_stored_as_python_numbers():
    five, some = np.int64(5), np.float32(0.25)
    for layer in (
        DeepResidual(E, depth=np.int32(2), dropout=some, init_range=some),
        Bilinear(E, hidden_size=five, dropout=np.float64(0.25)),
        DualNonlinear(E, hidden_size=np.uint8(5), joint_size=five, dropout=some),
        FullSoftmax(np.int64(V), five, init_range=some),
        mixture(E, experts=np.int64(2), dropout=some, init_range=some),
        SampledSoftmax(TiedSoftmax(E), five),
        Mixtape(TiedSoftmax(E), np.int64(4), gates=five, gate_size=five, dropout=some),
        Doc(TiedSoftmax(E), np.array([2])),
        Plif(TiedSoftmax(E), five, limit=some),
        AdaptiveSoftmax(TiedSoftmax(E), np.array([3, 6]), reduction_factor=some * 8),
        TiedSoftmax(Descriptions(nn.Linear(3, 5), torch.zeros(V, 3), five)),
    ):
        layer.resize(np.int64(layer.vocabulary_size))
        layer.nll(*batch(layer, 3)).backward()
        stored = [x for module in layer.modules() for x in vars(module).values()]
        assert not any(isinstance(x, np.generic) for x in stored)
        assert all(type(c) is int for c in getattr(layer, "cutoffs", ()))


@pytest.mark.parametrize(
    "wrong", ["embedding", torch.zeros(V, D), nn.Linear(D, V), None, nn.EmbeddingBag(V, D)]
)
@pytest.mark.parametrize("build", MATRIX)
def test_a_source_without_label_vectors_raises(build, wrong):
    with raises(TypeError, build.__name__, "nn.Embedding", type(wrong).__name__):
        build(wrong)


WRAPPERS = [partial(MixtureOfSoftmaxes, experts=2), Doc, Plif, SampledSoftmax, Mixtape]
WRAPPERS += [partial(AdaptiveSoftmax, cutoffs=[3])]


@pytest.mark.parametrize("outer", WRAPPERS)
def test_a_wrapper_of_no_matrix_layer_raises(outer):
    for inner in (*(wrapper(TiedSoftmax(E)) for wrapper in WRAPPERS), nn.Linear(D, V)):
        with raises(TypeError, "MatrixLayer", type(inner).__name__):
            outer(inner)


# -- resizing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, V + 1.5, "12", True])
def test_resizing_to_no_count_raises(size):
    with raises(ValueError, repr(size)):
        make("tied").resize(size)


@pytest.mark.parametrize(
    ("size", "shape"), [(V + 2, (1, D)), (V + 2, (2, D + 1)), (V - 1, (1, D)), (V, (V, D))]
)
def test_resizing_with_vectors_of_another_shape_raises(size, shape):
    layer = make("deep residual 2")
    with raises(ValueError, f"({max(0, size - V)}, {D})", shape):
        layer.resize(size, torch.zeros(shape))
    assert layer.vocabulary_size == len(layer.bias) == V


@one_of_each_layer
@cpu_and_cuda
def test_a_failed_resize_changes_nothing(device, name):
    layer, hidden, _ = given(name, device)
    before = layer.log_probs(hidden)
    with raises(ValueError, 0, device=device):
        layer.resize(0)
    with raises(ValueError, "vectors", device=device):
        layer.resize(V + 2, torch.zeros(1, 1, device=device))
    for block in (layer.cached_labels, layer.shared_labels):
        with block(), raises(RuntimeError, "cached_labels", device=device):
            layer.resize(V + 1)
    assert torch.equal(layer.log_probs(hidden), before)


# -- label sources and rows ---------------------------------------------------------------------


def test_invalid_descriptions_raise():
    rows, encoder = torch.zeros(V, 3, dtype=torch.long), nn.EmbeddingBag(20, D)
    source = Descriptions(encoder, rows, D)
    with raises(ValueError, "embedding_dim"):
        Descriptions(encoder, rows, 0)
    with raises(TypeError, "torch.float32"):
        source.extend(torch.full((1, 3), 0.5))
    with raises(ValueError, "extend"):
        TiedSoftmax(source).resize(V + 2)
    with raises(ValueError, "cannot lose"):
        TiedSoftmax(source).resize(V - 2)
    assert source.num_embeddings == V
    other = TiedSoftmax(Descriptions(nn.Linear(6, D + 1), torch.randn(V, 6), D))
    with raises(ValueError, f"({V}, {D + 1})", f"({V}, {D})"):
        other.log_probs(torch.randn(3, D))


@pytest.mark.parametrize(
    "rows", [torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor([True])], ids=str
)
def test_rows_that_are_no_ids_raise(rows):
    with raises(TypeError, "rows"):
        make("deep residual 2").labels(rows)


@pytest.mark.parametrize("wrong", [V, 2**40, -1])
@one_of_each_layer
@cpu_and_cuda
def test_rows_out_of_range_raise(device, name, wrong):
    layer = matrix_of(given(name, device)[0])
    with raises(IndexError, f"rows hold {wrong} at [1]", device=device):
        layer.labels(torch.tensor([0, wrong], device=device))
