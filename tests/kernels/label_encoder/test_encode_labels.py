"""The fused label encoder against the loop in ``DeepResidual.labels``, under the same masks."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from drill.kernels.label_encoder import encode_labels as label_encoder
from drill.kernels.label_encoder.encode_labels import KeptBits, choose_encoder, fused_missing
from drill.kernels.label_encoder.options import Options
from drill.kernels.loss import products as products_module
from drill.kernels.runtime import dispatch as module
from drill.kernels.runtime import padding
from drill.kernels.runtime.dispatch import Choice
from drill.layers import DeepResidual

interpreted = pytest.mark.skipif(
    not (module.TRITON_INSTALLED and module.INTERPRETED),
    reason="Triton is not installed, or runs on the GPU",
)
OPTIONS = [
    {"activation": "sigmoid", "dropout": 0.6},
    {"activation": "sigmoid", "dropout": 0.6, "dropout_at": "output"},
    {"activation": "relu", "dropout": 0.5, "locked": False},
    {"activation": "relu", "dropout": 0.5, "locked": False, "dropout_at": "output"},
    {"activation": "relu", "dropout": 0.5},
    {"activation": "relu", "dropout": 0.5, "dropout_at": "output", "residual_between": True},
    {"activation": "relu", "dropout": 0.5, "locked": False, "residual_between": True},
    {"activation": "tanh", "locked": False, "residual_between": True, "dropout": 0.3},
    {"activation": "gelu", "locked": False, "depth": 9, "dropout": 0.2, "residual_between": True},
    {"activation": "none", "locked": False, "depth": 1, "dropout": 0.4, "residual": False},
    {"activation": "tanh", "residual_between": True, "dropout": 0.3},
    {"activation": "silu", "residual_between": True, "residual": False},
    {"activation": "none", "residual": False, "map_bias": False},
    {"activation": "silu", "depth": 1, "dropout": 0.5},
    {"activation": "tanh", "depth": 4, "map_bias": False, "residual_between": True},
    {"activation": "none", "depth": 5, "dropout": 0.4, "residual": False},
    {"activation": "gelu", "depth": 2, "dropout": 0.4, "map_bias": False},
]
# Every activation and option once; in the others they meet in other ways.
FAST = [OPTIONS[i] for i in (0, 3, 5, 7, 9, 11, 16)]


def way(options: dict[str, object], *products: str) -> object:
    marks = () if options in FAST else pytest.mark.slow
    name = "-".join(map(str, [*options.values(), *products]))
    return pytest.param(options, *products, marks=marks, id=name)


every_option = pytest.mark.parametrize("options", [way(each) for each in OPTIONS])

by_whom = pytest.mark.parametrize("products", ["cublas", "chosen"])


def narrows(options: dict[str, object]) -> bool:
    """Whether locked masks drop columns, so that Triton multiplies what is left."""
    usual = {"dropout_at": "input", "locked": True, "residual_between": False}
    return "dropout" in options and usual.items() <= {**usual, **options}.items()


# The interpreter goes cuBLAS's way for all others, and where a width is no multiple of 16: asked to
# choose, it would run them a second time.
NARROWED = [options for options in OPTIONS if narrows(options)]
WAYS = [(each, "cublas") for each in OPTIONS] + [(each, "chosen") for each in NARROWED]
every_way = pytest.mark.parametrize(("options", "products"), [way(*each) for each in WAYS])


def build(labels: int, width: int, device: str = "cpu", **options: object) -> DeepResidual:
    torch.manual_seed(0)
    embedding = nn.Embedding(labels, width)
    nn.init.uniform_(embedding.weight, -0.5, 0.5)
    return DeepResidual(embedding, **{"depth": 3, **options}).to(device)


Masks = Tensor | KeptBits | None


def with_masks(layer: DeepResidual, masks: Masks) -> None:
    """Every map of the layer drops by these masks, in turn or all at once."""
    each = masks.masks() if isinstance(masks, KeptBits) else masks
    given = masks.to(layer.label_weight.dtype) if isinstance(masks, Tensor) else masks
    for turn, f in enumerate(layer.maps):
        f.draw_mask = lambda X, turn=turn: None if each is None else each[turn].to(X.dtype)
        f.draw_masks = lambda X, depth: given


def solve(layer: DeepResidual, encoder: str, masks: Masks, grad: Tensor) -> list[Tensor]:
    """Encoded labels, and the gradients of all parameters that take part."""
    layer = copy.deepcopy(layer)
    layer.impl = encoder
    with_masks(layer, masks)
    labels = layer.labels()
    labels.backward(grad.to(labels.dtype))
    return [labels.detach(), *(p.grad for p in layer.parameters() if p.grad is not None)]


def given(labels: int, width: int, device: str = "cpu", **options: object):
    layer = build(labels, width, device, **options)
    masks = layer.maps[0].draw_masks(layer.label_weight, layer.depth)
    return layer, masks, torch.randn(labels, width, device=device)


def assert_same(found: list[Tensor], truth: list[Tensor]) -> None:
    """To float32's rounding, at the scale of each tensor's largest entry."""
    for a, b in zip(found, truth, strict=True):
        atol = 1e-5 * max(1.0, b.abs().max().item())
        torch.testing.assert_close(a, b, rtol=1e-4, atol=atol)


def assert_fused_equals_loop(size: tuple[int, int], options: dict[str, object]) -> None:
    layer, masks, grad = given(*size, **options)
    assert_same(*(solve(layer, encoder, masks, grad) for encoder in ("triton", "reference")))


def relative(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    assert len(found) == len(truth)
    return [
        ((a.double() - b.double()).norm() / b.double().norm()).item()
        for a, b in zip(found, truth, strict=True)
    ]


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("size", [(70, 32), (1, 16)])
@every_way
def test_fused_equals_the_loop(options, products, size, multiply):
    multiply(products)
    assert_fused_equals_loop(size, options)


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_programs")
@pytest.mark.parametrize(
    ("options", "products"),
    [
        way(OPTIONS[0], "cublas"),
        way(OPTIONS[5], "cublas"),
        *(way(each, "chosen") for each in NARROWED),
    ],
)
def test_several_strips_of_columns_equal_the_loop(options, products, multiply):
    multiply(products)
    assert_fused_equals_loop((66, 144), options)


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("size", [(3, 130), (1, 1)])
@every_option
def test_any_width_equals_the_loop(options, size):
    assert_fused_equals_loop(size, options)


# Of cuBLAS's way alignment touches the result alone, so few columns do; padded to 128, and as is.
@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_programs")
@pytest.mark.parametrize("size", [(70, 32), (64, 16)])
@every_option
def test_aligned_rows_change_nothing(options, size, multiply, monkeypatch):
    monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    multiply("cublas")
    assert_fused_equals_loop(size, options)


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_programs")
@pytest.mark.parametrize("size", [(66, 48), (128, 64)])
@pytest.mark.parametrize("options", [way(each) for each in NARROWED])
def test_aligned_rows_change_nothing_of_narrowed_maps(options, size, monkeypatch):
    monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    assert_fused_equals_loop(size, options)


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize(("locked", "products"), [(False, "cublas"), (True, "chosen")])
def test_the_loss_takes_the_labels_as_they_lie(locked, products, multiply, monkeypatch):
    monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    multiply(products)
    layer, *_ = given(70, 32, locked=locked, dropout=0.5)
    layer.impl = "triton"
    labels = layer.labels()
    found = padding.with_padding(labels, labels.dtype)
    assert found.data_ptr() == labels.data_ptr()
    assert found.shape == (128, 32)
    assert torch.equal(found[:70], labels)
    assert not found[70:].any()
    assert padding.with_padding(labels, torch.float16) is None
    assert padding.with_padding(labels.clone(), labels.dtype) is None
    labels.mul_(2.0).sum().backward()  # no view, so they may be written to
    assert not padding.with_padding(labels, labels.dtype)[70:].any()
    labels.data = torch.ones(70, 32)
    assert padding.with_padding(labels, labels.dtype) is None


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@by_whom
def test_a_step_through_the_loss_copies_no_labels(products, multiply, monkeypatch):
    def recorded(weight, dtype):
        found.append(with_padding(weight, dtype))
        return found[-1]

    found, with_padding = [], padding.with_padding
    monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    monkeypatch.setattr(products_module, "with_padding", recorded)
    multiply(products)
    layer, masks, _ = given(70, 32, locked=False, dropout=0.5)
    with_masks(layer, masks)
    hidden, targets = torch.randn(8, 32), torch.randint(70, (8,))
    gradients = []
    for layer.impl, impl in (("triton", "triton"), ("reference", "reference")):
        loss = layer.nll(hidden, targets, impl=impl)
        gradients.append(torch.autograd.grad(loss, list(layer.parameters())))
    assert_same(*gradients)
    assert len(found) == 2  # forward and backward
    assert all(weight is not None for weight in found)


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_programs")
@pytest.mark.parametrize("kept", [(0, 16, 63), (17, 80, 1), (40, 0, 64)])
def test_masks_may_leave_any_number_of_columns(kept):
    layer, _, grad = given(70, 80, dropout=0.5)
    masks = torch.zeros(layer.depth, 1, 80)
    for turn in range(layer.depth):
        masks[turn, 0, torch.randperm(80)[: kept[turn]]] = 2.0
    fused, loop = (solve(layer, encoder, masks, grad) for encoder in ("triton", "reference"))
    assert_same(fused, loop)


@interpreted
@every_way
def test_autocast_encodes_in_half_precision_and_keeps_the_parameters_dtype(
    options, products, multiply
):
    multiply(products)
    layer, masks, grad = given(70, 32, **options)
    with torch.autocast("cpu", torch.float16):
        labels, *gradients = fused = solve(layer, "triton", masks, grad)
        (twin,) = solve(layer, "reference", masks, grad)[:1]
    loop = solve(layer, "reference", masks, grad)
    assert labels.dtype == twin.dtype == torch.float16
    assert all(x.dtype == torch.float32 for x in gradients)
    assert 1e-5 < max(relative(fused, loop)) < (0.1 if options["activation"] == "relu" else 5e-3)


@interpreted
def test_who_multiplies():
    def function(d=16, dtype=torch.float16, locked=True, labels=4):
        E = torch.zeros(labels, d)
        options = Options(0, True, False, locked, 1.0, True, False)
        return label_encoder._function(E, dtype, options, 2).__name__

    assert function() == function(d=1024) == "FusedEncode"
    assert function(locked=False) == "PointwiseEncode"
    assert function(d=24) == function(labels=0) == "PointwiseEncode"
    assert function(dtype=torch.bfloat16) == "PointwiseEncode"  # the interpreter cannot


@interpreted
@by_whom
def test_no_labels_encode_to_nothing(products, multiply):
    multiply(products)
    layer, *_ = given(5, 16)
    layer.impl = "triton"
    rows = torch.empty(0, dtype=torch.long)
    layer.labels(rows).sum().backward()
    assert layer.labels(rows).shape == (0, 16)
    assert all(not f.linear.weight.grad.any() for f in layer.maps)


@interpreted
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@by_whom
def test_a_nan_in_one_label_stays_with_that_label(products, dropout, multiply):
    multiply(products)
    layer, *_ = given(20, 16, activation="relu", dropout=dropout)
    layer.impl = "triton"
    with torch.no_grad():
        layer.label_weight[3, 2] = torch.nan
    assert layer.labels().isnan().any(1).nonzero().flatten().tolist() == [3]


@interpreted
@by_whom
def test_masks_are_fresh_for_every_call_and_off_in_evaluation(products, multiply):
    multiply(products)
    layer, *_ = given(20, 16, dropout=0.5)
    layer.impl = "triton"
    assert not torch.equal(layer.labels(), layer.labels())
    layer.eval()
    assert torch.equal(layer.labels(), layer.labels())


@interpreted
@by_whom
def test_second_derivatives_and_batches_of_gradients_raise(products, multiply):
    multiply(products)
    layer, *_ = given(4, 16)
    layer.impl = "triton"
    labels = layer.labels()
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(labels.sum(), layer.label_weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r'^DeepResidual: .*; use impl="reference"$'):
        torch.autograd.grad(
            labels, layer.label_weight, torch.ones(3, *labels.shape), is_grads_batched=True
        )


def test_auto_says_what_it_takes_and_why():
    E = torch.zeros(4, 8)
    assert choose_encoder(E, 8, 2) == ("reference", "the labels are on cpu")
    assert fused_missing(E, 8, 0) == "depth 0 has nothing to encode"
    assert "8 becomes 6" in fused_missing(E, 6, 2)


def test_triton_without_maps_raises():
    layer = build(4, 8, depth=0)
    layer.impl = "triton"
    with pytest.raises(ValueError, match='depth 0 has nothing to encode; use impl="auto"'):
        layer.labels()


@interpreted
@every_way
def test_without_gradients_one_plane_serves_all_maps(options, products, multiply):
    multiply(products)
    layer, *_ = given(20, 16, **options)
    layer.eval()
    layer.impl = "triton"
    with torch.no_grad():
        found = layer.labels()
    torch.testing.assert_close(found, layer.labels().detach())


@interpreted
@by_whom
def test_masks_hold_without_gradients_too(products, multiply):
    multiply(products)
    layer, masks, _ = given(20, 48, dropout=0.5)
    with_masks(layer, masks)
    layer.impl = "triton"
    with torch.no_grad():
        found = layer.labels()
    torch.testing.assert_close(found, layer.labels().detach())


@pytest.mark.gpu
@pytest.mark.parametrize("locked", [True, False])
@by_whom
def test_autocast_gives_gradients_in_the_parameters_dtype(products, locked, multiply):
    multiply(products)
    layer, masks, grad = given(500, 64, "cuda", dropout=0.5, locked=locked)
    with torch.autocast("cuda", torch.bfloat16):
        fused, loop = (solve(layer, encoder, masks, grad) for encoder in ("triton", "reference"))
    assert fused[0].dtype == torch.bfloat16
    assert all(x.dtype == torch.float32 for x in fused[1:])
    for a, b in itertools.pairwise([fused, loop]):
        assert max(relative(a, b)) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("locked", [True, False])
@by_whom
def test_repeats_bit_by_bit(products, locked, dtype, multiply):
    multiply(products)
    layer, masks, grad = given(1000, 400, "cuda", dropout=0.5, locked=locked)
    layer = layer.to(dtype)
    first, second = (solve(layer, "triton", masks, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def assert_replays(
    layer: DeepResidual,
    masks: Masks,
    grad: Tensor,
    times: int,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Replays of an encoding and its gradients have the bits of its launch.

    ``before`` comes between that launch and another one, which compiles what no graph records.
    """
    layer.impl = "triton"
    with_masks(layer, masks)
    parameters = [p for p in layer.parameters() if p is not layer.bias]

    def step() -> list[Tensor]:
        labels = layer.labels()
        return [labels, *torch.autograd.grad(labels, parameters, grad.to(labels.dtype))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which may still be writing what is given
    with torch.cuda.stream(stream):
        expected = [each.detach().clone() for each in step()]
        before()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = step()
    for _ in range(times):
        for each in recorded:
            each.detach().zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(recorded, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [True, False])
def test_recorded_launches_give_the_same_bits_whether_they_overlap_or_not(overlap, monkeypatch):
    layer, masks, grad = given(3000, 400, "cuda", dropout=0.6)

    def launched_apart() -> None:
        if not overlap:
            launch = {"OVERLAP": False, "launch_pdl": False}
            monkeypatch.setattr(
                "drill.kernels.label_encoder.locked.locked_encode.overlapping", lambda _: launch
            )

    assert_replays(layer.bfloat16(), masks, grad, times=20, before=launched_apart)


def pruned(layer: DeepResidual) -> None:
    prune.l1_unstructured(layer.maps[1].linear, "weight", 0.5)


class Adapter(nn.Linear):
    """Stands for what fine-tuning puts in the place of a linear map."""


def adapted(layer: DeepResidual) -> None:
    layer.maps[1].linear = Adapter(8, 8)


def watched(layer: DeepResidual) -> None:
    layer.maps[1].linear.register_full_backward_hook(lambda *_: None)


def watched_before(layer: DeepResidual) -> None:
    layer.maps[1].register_full_backward_pre_hook(lambda *_: None)


def replaced(layer: DeepResidual) -> None:
    layer.maps[1].linear.forward = torch.nn.functional.relu


def unlike(layer: DeepResidual) -> None:
    layer.maps[1].activation = "relu"


def frozen(layer: DeepResidual) -> None:
    layer.maps[1].eval()


def unbiased(layer: DeepResidual) -> None:
    layer.maps[1].linear.bias = None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (pruned, "map 1 has to be called"),
        (adapted, "map 1 has to be called: .* Adapter"),
        (watched, "map 1 has to be called"),
        (watched_before, "map 1 has to be called"),
        (replaced, "map 1 has to be called"),
        (unlike, "map 1 has other settings than map 0"),
        (frozen, "map 1 has other settings than map 0"),
        (unbiased, "map 1 has other settings than map 0"),
    ],
)
def test_maps_that_must_be_called_are_called(change, why, monkeypatch):
    layer = build(4, 8, depth=2)
    change(layer)
    layer.impl = "triton"
    with pytest.raises(ValueError, match=rf'{why}.*; use impl="auto"'):
        layer.labels()
    layer.impl = "auto"
    fused = Choice("triton", "as on a GPU")
    monkeypatch.setattr(label_encoder, "choose_encoder", lambda *_: fused)
    monkeypatch.setattr(label_encoder, "encode_labels", lambda *_, **__: pytest.fail("fused"))
    layer.labels()
