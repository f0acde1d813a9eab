"""The fused label encoder against the loop in ``deep_residual.encode``, under the same masks."""

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from drill.kernels.label_encoder import encode_labels
from drill.kernels.label_encoder.encode_labels import resolve_encoder
from drill.kernels.label_encoder.options import KeptBits, Options
from drill.kernels.runtime import padding
from drill.layers import DeepResidual
from tests.helpers.devices import interpreted
from tests.kernels.label_encoder.test_dropout_bits import as_masks
from tests.layers.test_label_map import Adapter

OPTIONS = [
    {"activation": "sigmoid", "dropout": 0.6},
    {"activation": "sigmoid", "dropout": 0.6, "dropout_at": "output"},
    {"activation": "relu", "dropout": 0.5, "locked": False},
    {"activation": "relu", "dropout": 0.5, "locked": False, "dropout_at": "output"},
    {"activation": "relu", "dropout": 0.5},
    {"activation": "relu", "dropout": 0.5, "dropout_at": "output"},
    {"activation": "tanh", "locked": False, "dropout": 0.3},
    {"activation": "tanh", "locked": False, "depth": 9, "dropout": 0.2},
    {"activation": "none", "locked": False, "depth": 1, "dropout": 0.4, "residual": False},
    {"activation": "tanh", "dropout": 0.3},
    {"activation": "silu", "residual": False},
    {"activation": "none", "residual": False, "map_bias": False},
    {"activation": "silu", "depth": 1, "dropout": 0.5},
    {"activation": "tanh", "depth": 4, "map_bias": False},
    {"activation": "none", "depth": 5, "dropout": 0.4, "residual": False},
    {"activation": "gelu", "depth": 2, "dropout": 0.4, "map_bias": False},
    {"activation": "sigmoid", "dropout": 0.6, "norm": "rms"},
    {"activation": "tanh", "dropout": 0.5, "norm": "rms", "locked": False, "depth": 1},
    {"activation": "sigmoid", "dropout": 0.5, "norm": "rms", "dropout_at": "output", "depth": 4},
    {"activation": "relu", "norm": "rms", "residual": False, "map_bias": False},
    {"activation": "silu", "dropout": 0.5, "norm": "rms", "block": "mlp"},
    {"activation": "tanh", "dropout": 0.4, "block": "mlp", "locked": False, "dropout_at": "output"},
    {"activation": "gelu", "norm": "rms", "block": "mlp", "depth": 1, "gate": "frequency"},
    {"activation": "sigmoid", "block": "mlp", "depth": 2, "residual": False, "map_bias": False},
    {"activation": "none", "dropout": 0.5, "block": "mlp", "depth": 2, "gate": "frequency"},
]
# Every activation and option once; in the others they meet in other combinations.
FAST = [OPTIONS[i] for i in (0, 3, 5, 6, 8, 10, 15, 16, 19, 20, 21, 22)]


def narrows(options: dict[str, object]) -> bool:
    """Whether locked masks drop columns, so that Triton multiplies what is left."""
    usual = {"dropout_at": "input", "locked": True}
    usual |= {"norm": "none", "block": "map", "residual": True}
    return "dropout" in options and usual.items() <= {**usual, **options}.items()


def case(options: dict[str, object], *more: object) -> object:
    marks = () if options in FAST else pytest.mark.slow
    name = "-".join(map(str, [*options.values(), *more]))
    return pytest.param(options, *more, marks=marks, id=name)


# The interpreter multiplies by cuBLAS for all others, and where a width is no multiple of 16: asked
# to choose, it would run them a second time.
NARROWED = [(each, "chosen") for each in OPTIONS if narrows(each)]
BY_CUBLAS = [(each, "cublas") for each in OPTIONS]
KERNELS = [*BY_CUBLAS, *NARROWED]
every_option = pytest.mark.parametrize("options", [case(each) for each in OPTIONS])
every_kernel = pytest.mark.parametrize(("options", "products"), [case(*each) for each in KERNELS])
by_whom = pytest.mark.parametrize("products", ["cublas", "chosen"])


def build(labels: int, width: int, device: str = "cpu", **options: object) -> DeepResidual:
    torch.manual_seed(0)
    embedding = nn.Embedding(labels, width)
    nn.init.uniform_(embedding.weight, -0.5, 0.5)
    if options.get("gate") == "frequency":
        options["counts"] = 3.0 * torch.arange(labels).sqrt() ** 3
    return DeepResidual(embedding, **{"depth": 3, **options}).to(device)


Masks = Tensor | KeptBits | None


def with_masks(layer: DeepResidual, masks: Masks) -> None:
    """Every map of the layer drops by these masks, in turn or all at once."""
    width = layer.label_weight.shape[1]
    each = as_masks(masks, width) if isinstance(masks, KeptBits) else masks
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


def fused(*size: int, **options: object) -> DeepResidual:
    return build(*size, impl="triton", **options)


def relative(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    assert len(found) == len(truth)
    return [
        ((a.double() - b.double()).norm() / b.double().norm()).item()
        for a, b in zip(found, truth, strict=True)
    ]


SWEEPS = [  # sizes, options with who multiplies, whether rows are aligned and tiles are large
    ([(70, 32), (1, 16)], KERNELS, False, False),
    # Several strips of columns.
    ([(66, 144)], [BY_CUBLAS[0], BY_CUBLAS[5], *NARROWED], False, True),
    # Any width.
    ([(3, 130), (1, 1)], [(each, "chosen") for each in OPTIONS], False, False),
    # By cuBLAS alignment touches the result alone, so few columns do; padded to 128, and as is.
    ([(70, 32), (64, 16)], BY_CUBLAS, True, True),
    ([(66, 48), (128, 64)], NARROWED, True, True),
]


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize(
    ("options", "products", "size", "aligned", "large_tiles"),
    [
        case(*kernel, size, aligned, large)
        for sizes, kernels, aligned, large in SWEEPS
        for size in sizes
        for kernel in kernels
    ],
)
def test_fused_equals_the_loop(
    options, products, size, aligned, large_tiles, choose_products, monkeypatch, request
):
    if large_tiles:
        request.getfixturevalue("few_programs")
    if aligned:
        monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    choose_products(products)
    layer, masks, grad = given(*size, **options)
    assert_same(*(solve(layer, encoder, masks, grad) for encoder in ("triton", "reference")))


@interpreted
@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("block", ["map", "mlp"])
def test_a_gate_is_a_factor_of_the_last_map(locked, block):
    options = {"gate": "frequency", "gate_count": 30, "counts": torch.arange(70.0)}
    layer, masks, grad = given(70, 32, depth=2, locked=locked, dropout=0.5, block=block, **options)
    assert_same(*(solve(layer, encoder, masks, grad) for encoder in ("triton", "reference")))


@interpreted
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize(("locked", "products"), [(False, "cublas"), (True, "chosen")])
def test_the_loss_takes_the_labels_as_they_lie(locked, products, choose_products, monkeypatch):
    monkeypatch.setitem(padding.ALIGN, "cpu", 64)
    choose_products(products)
    labels = fused(70, 32, locked=locked, dropout=0.5).labels()
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
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_programs")
@pytest.mark.parametrize("kept", [(0, 16, 63), (17, 80, 1), (40, 0, 64)])
def test_masks_may_leave_any_number_of_columns(kept):
    layer, _, grad = given(70, 80, dropout=0.5)
    masks = torch.zeros(layer.depth, 1, 80)
    for turn in range(layer.depth):
        masks[turn, 0, torch.randperm(80)[: kept[turn]]] = 2.0
    assert_same(*(solve(layer, encoder, masks, grad) for encoder in ("triton", "reference")))


@interpreted
@every_kernel
def test_autocast_encodes_in_half_precision_and_keeps_the_parameters_dtype(
    options, products, choose_products
):
    choose_products(products)
    layer, masks, grad = given(70, 32, **options)
    with torch.autocast("cpu", torch.float16):
        labels, *gradients = found = solve(layer, "triton", masks, grad)
        (twin,) = solve(layer, "reference", masks, grad)[:1]
    loop = solve(layer, "reference", masks, grad)
    assert labels.dtype == twin.dtype == torch.float16
    assert all(x.dtype == torch.float32 for x in gradients)
    assert 1e-5 < max(relative(found, loop)) < (0.1 if options["activation"] == "relu" else 5e-3)


@interpreted
def test_who_multiplies():
    def function(d=16, dtype=torch.float16, locked=True, labels=4, norm=False):
        E = torch.zeros(labels, d)
        options = Options(0, True, False, locked, True, norm)
        return encode_labels._function(E, dtype, options, 2).__name__

    assert function() == function(d=1024) == "LockedEncode"
    assert function(locked=False) == function(norm=True) == "PointwiseEncode"
    assert function(d=24) == function(labels=0) == "PointwiseEncode"
    assert function(dtype=torch.bfloat16) == "PointwiseEncode"  # the interpreter cannot


@interpreted
@by_whom
def test_no_labels_encode_to_nothing(products, choose_products):
    choose_products(products)
    layer = fused(5, 16)
    rows = torch.empty(0, dtype=torch.long)
    layer.labels(rows).sum().backward()
    assert layer.labels(rows).shape == (0, 16)
    assert all(not f.linear.weight.grad.any() for f in layer.maps)


@interpreted
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@by_whom
def test_a_nan_in_one_label_stays_with_that_label(products, dropout, choose_products):
    choose_products(products)
    layer = fused(20, 16, activation="relu", dropout=dropout)
    with torch.no_grad():
        layer.label_weight[3, 2] = torch.nan
    assert layer.labels().isnan().any(1).nonzero().flatten().tolist() == [3]


@interpreted
@by_whom
def test_second_derivatives_and_batches_of_gradients_raise(products, choose_products):
    choose_products(products)
    layer = fused(4, 16)
    labels = layer.labels()
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(labels.sum(), layer.label_weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r'^DeepResidual: .*; use impl="reference"$'):
        torch.autograd.grad(
            labels, layer.label_weight, torch.ones(3, *labels.shape), is_grads_batched=True
        )


def test_auto_says_what_it_takes_and_why():
    choice = resolve_encoder(torch.zeros(4, 8), build(4, 8).maps, "auto", False)
    assert choice == ("reference", "the labels are on cpu")
    with pytest.raises(ValueError, match="8 becomes 6"):
        fused(4, 8, hidden_size=6, residual=False).labels()
    with pytest.raises(ValueError, match='depth 0 has nothing to encode; use impl="auto"'):
        fused(4, 8, depth=0).labels()
    with pytest.raises(ValueError, match='no kernel has residual_between; use impl="auto"'):
        fused(4, 8, residual_between=True).labels()


@interpreted
@every_kernel
def test_labels_are_the_same_without_gradients(options, products, choose_products):
    choose_products(products)
    layer, masks, _ = given(20, 48, **options)
    layer.impl = "triton"
    for training, each in ((False, None), (True, masks)):
        with_masks(layer.train(training), each)
        with torch.no_grad():
            found = layer.labels()
        torch.testing.assert_close(found, layer.labels().detach())


@pytest.mark.gpu
@pytest.mark.parametrize("locked", [True, False])
@by_whom
def test_autocast_gives_gradients_in_the_parameters_dtype(products, locked, choose_products):
    choose_products(products)
    layer, masks, grad = given(500, 64, "cuda", dropout=0.5, locked=locked)
    with torch.autocast("cuda", torch.bfloat16):
        found, loop = (solve(layer, encoder, masks, grad) for encoder in ("triton", "reference"))
    assert found[0].dtype == torch.bfloat16
    assert all(x.dtype == torch.float32 for x in found[1:])
    assert max(relative(found, loop)) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("locked", [True, False])
@by_whom
def test_repeats_bit_by_bit(products, locked, dtype, choose_products):
    choose_products(products)
    layer, masks, grad = given(1000, 400, "cuda", dropout=0.5, locked=locked)
    layer = layer.to(dtype)
    first, second = (solve(layer, "triton", masks, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# -- errors against the loop in float64 ----------------------------------------------------------


@interpreted
@pytest.mark.usefixtures("few_programs")
@every_kernel
def test_fused_is_no_less_exact_than_the_loop_in_half_precision(options, products, choose_products):
    choose_products(products)
    layer, masks, grad = given(70, 64, **options)
    assert_no_less_exact(layer, masks, grad, torch.float16)


# 2331 x 36 is multiplied by cuBLAS in either case.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(1000, 400), (2057, 512), (2331, 36)])
@by_whom
@every_option
def test_fused_is_no_less_exact_than_the_loop_on_a_gpu(
    options, products, size, dtype, choose_products
):
    choose_products(products)
    layer, masks, grad = given(*size, "cuda", **options)
    assert_no_less_exact(layer, masks, grad, dtype)


def assert_no_less_exact(layer: DeepResidual, masks: Masks, grad: Tensor, dtype) -> None:
    """By a factor of 1.3, and what luck and the order of sums make of it.

    The error of n numbers is a random number itself: of few, as a bias has, two of one kind differ
    by a factor of 1 + 4 / sqrt(n) once in ten thousand times. Products sum over the labels one
    after the other, each sum rounded, where torch sums pairs: sqrt(V) roundings of 2^-24.
    """
    narrow = copy.deepcopy(layer).to(dtype)
    exact = copy.deepcopy(narrow).double()
    if layer.maps[0].activation == "relu":
        grad = grad * clear_of_the_kink(exact, masks, dtype)[:, None]
    truth = solve(exact, "reference", masks, grad.to(dtype).double())
    loop = relative(solve(narrow, "reference", masks, grad), truth)
    fused = relative(solve(narrow, "triton", masks, grad), truth)
    names = ["labels", *(name for name, _ in narrow.named_parameters() if name != "bias")]
    factors = [max(1.3, 1 + 4 / math.sqrt(tensor.numel())) for tensor in truth]
    rounding = math.sqrt(len(truth[0])) * 2**-24
    worse = [
        f"{name}: {a:.2e} where the loop has {b:.2e}"
        for name, a, b, factor in zip(names, fused, loop, factors, strict=True)
        if a > factor * b + rounding
    ]
    assert worse == []


def clear_of_the_kink(exact: DeepResidual, masks: Masks, dtype: torch.dtype) -> Tensor:
    """Labels (V,) none of whose products ``dtype`` may round to the other side of 0.

    There relu stops a gradient, or lets it pass: a whole one, where all other errors are roundings.
    float16 does so to some ten products of 2331 x 36 labels, and one more or less decided. Where
    hardly a label is clear, it is hundreds, too many for luck: then it is all labels.
    """
    nearest = torch.full_like(exact.label_weight[:, 0], torch.inf)

    def look(linear, given, products: Tensor) -> None:
        # Five times the error of a small one and more: the operands' rounding, and that of sums.
        sums = math.sqrt(linear.in_features) * 2**-22
        far = (2 * torch.finfo(dtype).eps + sums) * products.std()
        torch.minimum(nearest, products.abs().amin(1) / far, out=nearest)

    layer = copy.deepcopy(exact)
    layer.impl = "reference"
    with_masks(layer, masks)
    for f in layer.maps:
        f.linear.register_forward_hook(look)
    with torch.no_grad():
        layer.labels()
    clear = nearest > 1
    return clear if clear.sum() > len(clear) / 20 else torch.ones_like(clear)


# -- recorded launches -------------------------------------------------------------------------


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


CHANGES = {  # of the second map
    "pruned": lambda f: prune.l1_unstructured(f.linear, "weight", 0.5),
    "adapter": lambda f: setattr(f, "linear", Adapter(8, 8)),
    "hook": lambda f: f.linear.register_full_backward_hook(lambda *_: None),
    "hook of the map": lambda f: f.register_full_backward_pre_hook(lambda *_: None),
    "forward": lambda f: setattr(f.linear, "forward", torch.relu),
    "other activation": lambda f: setattr(f, "activation", "relu"),
    "other mode": lambda f: f.eval(),
    "other bias": lambda f: setattr(f.linear, "bias", None),
    "adapter of W": lambda f: setattr(f, "output", Adapter(8, 8)),
    "bias of W": lambda f: setattr(f, "output", nn.Linear(8, 8)),
    "other block": lambda f: setattr(f, "output", nn.Linear(8, 8, bias=False)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_maps_that_must_be_called_are_called(change, monkeypatch):
    layer = fused(4, 8, depth=2)
    # What resolve_encoder asks of labels on a device with Triton.
    monkeypatch.setattr(encode_labels, "triton_missing", lambda *_: None)
    labels = SimpleNamespace(shape=(4, 8), device=torch.device("cuda"), dtype=torch.float32)
    assert resolve_encoder(labels, layer.maps, "auto", False).impl == "triton"
    CHANGES[change](layer.maps[1])
    why = "other settings than map 0" if "other" in change else "to be called"
    with pytest.raises(ValueError, match=rf'map 1 has {why}.*; use impl="auto"'):
        layer.labels()
    choice = resolve_encoder(labels, layer.maps, "auto", False)
    assert choice.impl == "reference"
    assert why in choice.reason
    layer.impl = "auto"
    layer.labels()
