"""Wrong input ends in one sentence with the fault, its sizes and the mend."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from drill.kernels.loss.nll import nll
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    Descriptions,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)
from tests.layers.table import CASES, D, H, V, batch, make, matrix_of, one_of_each_layer

E = nn.Embedding(V, D)
LAYERS_WITH_MAPS = pytest.mark.parametrize("build", [Bilinear, DualNonlinear, DeepResidual])
METHODS = pytest.mark.parametrize("method", ["log_probs", "logits", "nll"])
WRAPPERS = [
    partial(MixtureOfSoftmaxes, experts=2),
    SampledSoftmax,
    partial(AdaptiveSoftmax, cutoffs=[3]),
]


@contextmanager
def one_sentence(
    error: type[Exception], *words: object
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The body raises this error; its message is one line that holds every word."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in message
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"


def ask(layer, method, hidden, targets=None, **options):  # type: ignore[no-untyped-def]
    if method != "nll":
        return getattr(layer, method)(hidden)
    if targets is None:
        targets = torch.zeros(hidden.shape[:-1], dtype=torch.long, device=hidden.device)
    return layer.nll(hidden, targets, **options)


# -- hidden -------------------------------------------------------------------------------------


@METHODS
@one_of_each_layer
def test_hidden_of_another_width(name, method):
    layer = make(name)
    width = layer.hidden_size
    with one_sentence(ValueError, f"(3, 2, {width + 1})", width, f"project it to {width}"):
        ask(layer, method, torch.randn(3, 2, width + 1))


@METHODS
@one_of_each_layer
def test_hidden_without_dimensions(name, method):
    with one_sentence(ValueError, "hidden ()", "hidden_size"):
        ask(make(name), method, torch.tensor(1.0))


@METHODS
@one_of_each_layer
def test_hidden_that_holds_ids(name, method):
    layer = make(name)
    with one_sentence(TypeError, "torch.int64", "encoder outputs"):
        ask(layer, method, torch.ones(3, layer.hidden_size, dtype=torch.long))


@METHODS
@one_of_each_layer
def test_hidden_on_another_device(name, method):
    layer = make(name)
    with one_sentence(ValueError, "meta", "cpu", ".to()"):
        ask(layer, method, torch.randn(3, layer.hidden_size, device="meta"))


@METHODS
@one_of_each_layer
def test_hidden_of_another_dtype_without_autocast(name, method):
    layer = make(name)
    with one_sentence(TypeError, "torch.bfloat16", "torch.float32", "torch.autocast"):
        ask(layer, method, torch.randn(3, layer.hidden_size, dtype=torch.bfloat16))
    with one_sentence(TypeError, "torch.float64", "torch.float32", ".to()") as caught:
        ask(layer, method, torch.randn(3, layer.hidden_size, dtype=torch.float64))
    assert "torch.autocast" not in str(caught.value)  # it would leave float64 as it is


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_weight_that_autocast_would_leave_as_it_is(dtype, autocast):
    hidden, weight = torch.randn(2, D), torch.zeros(V, D).to(dtype)
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        one_sentence(TypeError, dtype, "torch.float32", ".to()") as caught,
    ):
        nll(hidden, weight, torch.zeros(2, dtype=torch.long))
    assert "run under" not in str(caught.value)
    assert ("autocast leaves" in str(caught.value)) is autocast


@METHODS
@one_of_each_layer
def test_hidden_of_float64_under_autocast(name, method):
    layer = make(name)
    with (
        torch.autocast("cpu", torch.bfloat16),
        one_sentence(TypeError, "torch.float64", "autocast leaves float64", ".to()"),
    ):
        ask(layer, method, torch.randn(3, layer.hidden_size, dtype=torch.float64))


# -- targets and the settings of a loss ---------------------------------------------------------


def loss(name, targets, **options):  # type: ignore[no-untyped-def]
    layer = make(name)
    return layer.nll(batch(layer, 3, 2)[0], targets, **options)


SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1])


@SMOOTHINGS
@one_of_each_layer
def test_targets_of_another_shape(name, smoothing):
    hidden = f"(3, 2, {make(name).hidden_size})"
    with one_sentence(ValueError, "targets (2, 3)", hidden, "shape (3, 2)"):
        loss(name, torch.zeros(2, 3, dtype=torch.long), label_smoothing=smoothing)


@SMOOTHINGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
@one_of_each_layer
def test_targets_that_are_no_ids(name, dtype, smoothing):
    with one_sentence(TypeError, dtype, ".long()"):
        loss(name, torch.zeros(3, 2, dtype=dtype), label_smoothing=smoothing)


@SMOOTHINGS
@pytest.mark.parametrize(
    ("wrong", "mend"), [(V, f"resize the layer to {V + 1} labels"), (-1, "ignore_index")]
)
@one_of_each_layer
def test_targets_out_of_range(name, wrong, mend, smoothing):
    targets = torch.tensor([[0, 1], [2, wrong], [4, -100]])
    with one_sentence(IndexError, f"targets hold {wrong} at [1, 1]", f"0 to {V - 1}", mend):
        loss(name, targets, label_smoothing=smoothing)


@SMOOTHINGS
@one_of_each_layer
def test_targets_on_another_device(name, smoothing):
    with one_sentence(ValueError, "meta", "cpu", ".to()"):
        loss(name, torch.zeros(3, 2, dtype=torch.long, device="meta"), label_smoothing=smoothing)


@SMOOTHINGS
@one_of_each_layer
def test_an_unknown_reduction(name, smoothing):
    with one_sentence(ValueError, "reduction", "none", "mean", "sum", "'median'"):
        loss(
            name,
            torch.zeros(3, 2, dtype=torch.long),
            reduction="median",
            label_smoothing=smoothing,
        )


@SMOOTHINGS
@one_of_each_layer
def test_an_unknown_implementation(name, smoothing):
    targets = torch.zeros(3, 2, dtype=torch.long)
    with one_sentence(ValueError, "impl", "auto, reference, chunked, triton", "'fast'"):
        loss(name, targets, impl="fast", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [2.0, -0.1, float("nan")])
@one_of_each_layer
def test_a_label_smoothing_that_is_no_fraction(name, smoothing):
    with one_sentence(ValueError, "label_smoothing", "[0, 1]", smoothing):
        loss(name, torch.zeros(3, 2, dtype=torch.long), label_smoothing=smoothing)


@pytest.mark.parametrize("method", ["log_probs", "nll"])
@pytest.mark.parametrize("name", [n for n in CASES if matrix_of(make(n)).bias is not None])
def test_a_bias_of_another_size(name, method):
    layer = make(name)
    matrix_of(layer).bias = nn.Parameter(torch.zeros(V + 1))
    with one_sentence(ValueError, f"({V + 1},)", V, f"resize({V})"):
        ask(layer, method, batch(layer, 3)[0])


# -- building a layer ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize(
    "build", [Bilinear, DualNonlinear, DeepResidual, partial(DeepResidual, depth=0)]
)
def test_a_dropout_that_is_no_fraction(build, value):
    with one_sentence(ValueError, "dropout", "[0, 1)", value):
        build(E, dropout=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_mixtures_dropout_that_is_no_fraction(value):
    with one_sentence(ValueError, "MixtureOfSoftmaxes", "dropout", "[0, 1)", value):
        MixtureOfSoftmaxes(TiedSoftmax(E), 2, dropout=value)


def test_numbers_of_numpy_are_numbers_and_are_kept_as_python_has_them():
    five, some = np.int64(5), np.float32(0.25)
    for layer in (
        DeepResidual(E, depth=np.int32(2), dropout=some, init_range=some),
        Bilinear(E, hidden_size=five, dropout=np.float64(0.25)),
        DualNonlinear(E, hidden_size=np.uint8(5), joint_size=five, dropout=some),
        FullSoftmax(np.int64(V), five, init_range=some),
        MixtureOfSoftmaxes(TiedSoftmax(E), np.int64(2), dropout=some, init_range=some),
        SampledSoftmax(TiedSoftmax(E), five),
        AdaptiveSoftmax(TiedSoftmax(E), np.array([3, 6]), reduction_factor=some * 8),
        TiedSoftmax(Descriptions(nn.Linear(3, 5), torch.zeros(V, 3), five)),
    ):
        layer.resize(np.int64(layer.vocabulary_size))
        layer.nll(*batch(layer, 3)).backward()
        kept = [x for module in layer.modules() for x in vars(module).values()]
        assert not any(isinstance(x, np.generic) for x in kept)
        cutoffs = getattr(layer, "cutoffs", ())
        assert all(type(c) is int for c in cutoffs)


@pytest.mark.parametrize("depth", [-1, 1.5, True, "2", None, np.int64(-1), np.float64(2.0)])
def test_a_depth_that_is_no_count(depth):
    with one_sentence(ValueError, "DeepResidual", "depth", "at least 0", repr(depth)):
        DeepResidual(E, depth=depth)


@pytest.mark.parametrize(
    "build", [DualNonlinear, DeepResidual, partial(DeepResidual, depth=0)], ids=str
)
def test_an_unknown_activation(build):
    with one_sentence(ValueError, "sigmoid, relu, tanh, gelu, none", "'swish'"):
        build(E, activation="swish")


@LAYERS_WITH_MAPS
def test_an_unknown_place_of_dropout(build):
    with one_sentence(ValueError, "dropout_at", "input, output", "'between'"):
        build(E, dropout_at="between")


def test_an_unknown_encoder():
    with one_sentence(ValueError, "impl", "auto, reference, triton", "'fast'"):
        DeepResidual(E, impl="fast")


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf"), "x", None, True])
@pytest.mark.parametrize(
    "build",
    [
        FullSoftmax,
        Bilinear,
        DualNonlinear,
        DeepResidual,
        lambda _, **options: MixtureOfSoftmaxes(TiedSoftmax(E), 2, **options),
    ],
)
def test_an_init_range_that_is_no_range(build, value):
    with one_sentence(ValueError, "init_range", "positive finite", repr(value)):
        build(E, init_range=value)


@pytest.mark.parametrize("wrong", ["embedding", torch.zeros(V, D), nn.Linear(D, V), None])
@pytest.mark.parametrize("build", [FullSoftmax, TiedSoftmax, Bilinear, DualNonlinear, DeepResidual])
def test_an_embedding_that_is_none(build, wrong):
    with one_sentence(TypeError, build.__name__, "nn.Embedding", type(wrong).__name__):
        build(wrong)


@pytest.mark.parametrize("build", [FullSoftmax, TiedSoftmax, Bilinear, DualNonlinear, DeepResidual])
def test_a_bag_of_embeddings(build):
    """It has the sizes of a label source, but sums rows instead of giving them."""
    with one_sentence(TypeError, build.__name__, "nn.EmbeddingBag", "Descriptions", "nn.Embedding"):
        build(nn.EmbeddingBag(V, D))


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
@pytest.mark.parametrize(
    "build",
    [
        FullSoftmax,
        Bilinear,
        DualNonlinear,
        partial(DeepResidual, residual=False),
        lambda _, size: MixtureOfSoftmaxes(TiedSoftmax(E), 2, size),
    ],
)
def test_a_hidden_size_that_is_no_width(build, size):
    with one_sentence(ValueError, "hidden_size", "at least 1", repr(size)):
        build(E, size)


@pytest.mark.parametrize("size", [0, 1.5])
def test_counts_of_labels_experts_and_joint_dimensions(size):
    with one_sentence(ValueError, "joint_size", "at least 1", size):
        DualNonlinear(E, joint_size=size)
    with one_sentence(ValueError, "experts", "at least 1", size):
        MixtureOfSoftmaxes(TiedSoftmax(E), size)
    with one_sentence(ValueError, "samples", "at least 1", size):
        SampledSoftmax(TiedSoftmax(E), size)


def test_a_full_softmax_that_knows_no_width():
    with one_sentence(ValueError, "FullSoftmax", "hidden_size"):
        FullSoftmax(V)
    with one_sentence(ValueError, "number of labels", "at least 1", 0):
        FullSoftmax(0, H)


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (lambda: DeepResidual(E, H), ("hidden_size is 5", "width 4", "residual=False")),
        (lambda: Bilinear(E, H, residual=True), ("hidden_size is 5", "width 4")),
        (lambda: DualNonlinear(E, joint_size=3, residual=True), ("joint_size is 3", "width 4")),
        (lambda: DualNonlinear(E, H, D, residual=True), ("joint_size is 4", "hidden_size 5")),
    ],
)
def test_a_residual_between_widths(build, sizes):
    with one_sentence(ValueError, *sizes, "make them equal"):
        build()


def test_depth_zero_between_widths_offers_a_mend_that_works():
    with pytest.raises(ValueError, match=r"hidden_size is 5.*width 4") as caught:
        DeepResidual(E, H, depth=0, residual=False)
    assert "residual=False" not in str(caught.value)


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
def test_a_wrapper_of_a_wrapper(outer, inner):
    with one_sentence(TypeError, "layer of one matrix", "not "):
        outer(inner(TiedSoftmax(E)))


# -- resizing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1])
@one_of_each_layer
def test_resizing_to_nothing(name, size):
    with one_sentence(ValueError, size):
        make(name).resize(size)


@pytest.mark.parametrize("size", [V + 1.5, "12", True])
def test_resizing_to_what_is_no_count(size):
    with one_sentence(ValueError, "whole number", repr(size)):
        make("tied").resize(size)


@pytest.mark.parametrize(
    ("size", "shape"), [(V + 2, (1, D)), (V + 2, (2, D + 1)), (V - 1, (1, D)), (V, (V, D))]
)
def test_resizing_with_vectors_of_another_shape(size, shape):
    layer = make("deep residual 2")
    with one_sentence(ValueError, V, size, f"({max(0, size - V)}, {D})", shape):
        layer.resize(size, torch.zeros(shape))
    assert layer.vocabulary_size == len(layer.bias) == V


@pytest.mark.parametrize("hold", ["cached_labels", "shared_labels"])
@one_of_each_layer
def test_resizing_while_labels_are_held(name, hold):
    layer = make(name)
    with getattr(layer, hold)():
        with one_sentence(RuntimeError, "cached_labels() or shared_labels()", "leave"):
            layer.resize(V + 1)
        assert layer.vocabulary_size == V


def test_resizing_beyond_the_descriptions():
    layer = make("tied over descriptions")
    with one_sentence(ValueError, f"{V} labels", V + 2, "extend"):
        layer.resize(V + 2)
    with one_sentence(ValueError, f"{V} labels", V - 2, "truncate"):
        layer.resize(V - 2)


def test_resizing_with_vectors_that_are_no_tensor():
    with one_sentence(TypeError, "TiedSoftmax", "vectors are a tensor", "list"):
        make("tied").resize(V + 1, [[0.0] * D])


# -- label sources and rows ---------------------------------------------------------------------


def test_an_encoder_of_descriptions_that_gives_another_shape():
    layer = TiedSoftmax(Descriptions(nn.Linear(6, D + 1), torch.randn(V, 6), D))
    with one_sentence(ValueError, f"({V}, {D + 1})", f"({V}, {D})"):
        layer.log_probs(torch.randn(3, D))


def test_descriptions_that_do_not_fit_the_old_ones():
    source = Descriptions(nn.Linear(6, D), torch.randn(V, 6), D)
    with one_sentence(ValueError, "(7,)", "(6,)", "pad or cut"):
        source.extend(torch.randn(2, 7))
    with one_sentence(ValueError, "one row per label", "()"):
        Descriptions(nn.Identity(), torch.tensor(1.0), D)
    with one_sentence(ValueError, f"{V} rows", V + 1, "extend"):
        source.truncate(V + 1)
    with one_sentence(ValueError, "number of labels", "at least 1", 0):
        source.truncate(0)


def test_descriptions_of_another_type():
    rows, encoder = torch.zeros(V, 3, dtype=torch.long), nn.EmbeddingBag(20, D)
    with one_sentence(TypeError, "rows are a tensor", "list"):
        Descriptions(encoder, [[1, 2, 3]], D)
    with one_sentence(TypeError, "encoder is an nn.Module", "function"):
        Descriptions(lambda x: x, rows, D)
    for width in (0, 4.0):
        with one_sentence(ValueError, "embedding_dim", "at least 1", width):
            Descriptions(encoder, rows, width)
    source = Descriptions(encoder, rows, D)
    with one_sentence(TypeError, "new rows are a tensor", "list"):
        source.extend([[1, 2, 3]])
    with one_sentence(TypeError, "torch.float32", "torch.int64"):
        source.extend(torch.full((1, 3), 0.5))
    assert source.num_embeddings == V


@pytest.mark.parametrize(
    "rows", [torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor([True])], ids=str
)
def test_rows_that_are_no_ids(rows):
    with one_sentence(TypeError, "label ids of shape (R,)", rows.dtype, tuple(rows.shape)):
        make("deep residual 2").labels(rows)


@pytest.mark.parametrize(("wrong", "mend"), [(V, f"resize the layer to {V + 1}"), (-1, "map it")])
def test_rows_out_of_range(wrong, mend):
    with one_sentence(IndexError, f"rows hold {wrong} at [1]", f"0 to {V - 1}", mend) as caught:
        make("deep residual 2").labels(torch.tensor([0, wrong]))
    assert "ignore_index" not in str(caught.value)  # rows have none


def test_what_a_recurrent_module_returns_is_named():
    layer = TiedSoftmax(E)
    with one_sentence(TypeError, "(output, state)", "give the output"):
        layer.nll((torch.randn(3, 4), None), torch.arange(3))
    with one_sentence(TypeError, "targets are a tensor", "list"):
        layer.nll(torch.randn(3, 4), [0, 1, 2])
    with one_sentence(TypeError, "rows are a tensor", "list"):
        layer.labels([1, 2])


@pytest.mark.parametrize(
    "setting",
    [
        {"memory": "1GB"}, {"memory": True}, {"memory": np.bool_(True)}, {"memory": 2.0**20},
        {"memory": np.float64(2.0**20)}, {"memory": torch.tensor(2**20)}, {"ignore_index": None},
        {"ignore_index": np.array([1])},
    ],
)  # fmt: skip
def test_settings_of_another_type(setting):
    with one_sentence(TypeError, "is a whole number"):
        TiedSoftmax(E).nll(torch.randn(3, 4), torch.arange(3), **setting)


@pytest.mark.parametrize(
    "smoothing", [None, "0.1", True, np.bool_(True), 0.1j, torch.tensor(0.1), np.array([0.1])]
)
@one_of_each_layer
def test_a_label_smoothing_that_is_no_number(name, smoothing):
    with one_sentence(TypeError, "label_smoothing is a number", repr(smoothing)):
        loss(name, torch.zeros(3, 2, dtype=torch.long), label_smoothing=smoothing)


@pytest.mark.parametrize("index", [2**70, 2**63, -(2**63) - 1])
@one_of_each_layer
def test_an_ignore_index_that_no_target_can_hold(name, index):
    with one_sentence(ValueError, f"ignore_index is {index}", "64 bits"):
        loss(name, torch.zeros(3, 2, dtype=torch.long), ignore_index=index)


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (build, option)
        for build in (Bilinear, DualNonlinear, DeepResidual)
        for option in ("residual", "locked", "map_bias", "bias")
    ]
    + [
        (DeepResidual, "residual_between"),
        (FullSoftmax, "bias"),
        (TiedSoftmax, "bias"),
        (lambda _, **options: MixtureOfSoftmaxes(TiedSoftmax(E), 2, **options), "locked"),
    ],
)
def test_a_switch_that_is_neither_on_nor_off(build, option):
    for value in ("no", 1, None):
        with one_sentence(ValueError, f"{option} is True or False", repr(value)):
            build(E, **{option: value})


def test_options_of_wrappers_of_another_type():
    for factor in (None, "4", True):
        with one_sentence(ValueError, "reduction_factor", "at least 1", repr(factor)):
            AdaptiveSoftmax(TiedSoftmax(E), [3], reduction_factor=factor)
    with one_sentence(TypeError, "generator is a torch.Generator", 3):
        SampledSoftmax(TiedSoftmax(E), generator=3)
    for wrapper in (SampledSoftmax, partial(AdaptiveSoftmax, cutoffs=[3])):
        for counts, kind in (("abc", "str"), ([1, None], "list"), (["a"] * V, "list")):
            with one_sentence(TypeError, "counts are", "one per label", kind):
                wrapper(TiedSoftmax(E), counts=counts)


def test_an_embedding_cast_after_the_layer_was_built():
    embedding = nn.Embedding(5, 4)
    layer = DeepResidual(embedding)
    embedding.bfloat16()
    with one_sentence(TypeError, "label vectors", "torch.bfloat16", "torch.float32"):
        layer.labels()


def test_rows_on_another_device():
    with one_sentence(ValueError, "meta", "cpu", "move one"):
        TiedSoftmax(nn.Embedding(5, 4)).labels(torch.arange(2, device="meta"))
