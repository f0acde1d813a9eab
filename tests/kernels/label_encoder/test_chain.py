"""All maps of the label encoder in one launch; see ``test_encode_labels`` for what all share."""

import copy
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from drill.kernels.label_encoder.chain import chain as module
from drill.kernels.label_encoder.chain.chain import (
    CLUSTER,
    MOST_STAGES,
    ROWS,
    ChainEncode,
    Shape,
    chain_missing,
    finished,
    prepared,
)
from drill.kernels.label_encoder.options import ACTIVATION_CODES, Options
from drill.kernels.label_encoder.weight_gradients import MANY, planes_for_sums, sum_in_parts
from drill.kernels.runtime.hopper import SHARED
from tests.helpers.devices import on_hopper
from tests.kernels.label_encoder.test_encode_labels import (
    assert_no_less_exact,
    assert_replays,
    build,
    given,
    relative,
    solve,
    with_masks,
)

PLAIN = Options(
    ACTIVATION_CODES["relu"],
    mask_in=True,
    mask_out=False,
    locked=False,
    residual=True,
    scale=2.0,
)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    "processors", [1, 2, 3, 5, 6, 7, 12, 14, 60, 132]
)  # of slices of a GPU, and of all of it
def test_clusters_are_whole_and_at_least_one(processors, monkeypatch, overlapped):
    properties = SimpleNamespace(multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(module, "awaited_by", lambda: object() if overlapped else None)
    share = processors // 3 if overlapped else processors
    for tiles in (CLUSTER, 4 * CLUSTER, 1000 * CLUSTER):
        blocks = module._blocks(torch.device("cuda"), tiles)
        assert blocks % CLUSTER == 0
        assert CLUSTER <= blocks <= max(CLUSTER, min(tiles, share))
        assert blocks == tiles or blocks + CLUSTER > share  # no multiprocessor is left idle


MIXED = [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("width", [16, 24, 64, 280, 400])
def test_shared_memory_holds_the_labels_and_a_ring(width):
    shape = Shape(width, 4, PLAIN, False)
    assert 2 * ROWS * width < shape.labels_bytes < shape.shared <= SHARED
    assert shape.labels_bytes % 128 == 0
    assert 8 <= shape.stages <= MOST_STAGES


@pytest.mark.parametrize("labels", [200, MANY, MANY + 1, 33_278])
def test_sums_in_parts_are_the_sums(labels):
    dP, X = (planes_for_sums(torch.empty(0), 2, labels, width) for width in (8, 24))
    assert dP.shape[1] - labels < 24
    dP[:, labels:], X[:, labels:] = 0, 0
    dP[:, :labels], X[:, :labels] = torch.randn(2, labels, 8), torch.randn(2, labels, 24)
    expected = dP[:, :labels].double().transpose(1, 2) @ X[:, :labels].double()
    found = sum_in_parts(dP.float(), X.float(), labels).sum(1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)


@on_hopper
@pytest.mark.parametrize(("dtype", "bias_dtype"), MIXED, ids=str)
def test_biases_keep_their_digits_next_to_maps_of_another_dtype(dtype, bias_dtype):
    U = torch.randn(3, 24, 24, device="cuda").to(dtype)
    biases = torch.randn(3, 24, device="cuda").to(bias_dtype)
    _, _, b = prepared(U.unbind(), biases.unbind(), Shape(24, 3, PLAIN, False), keep=True)
    assert torch.equal(b, biases.float())


@on_hopper
@pytest.mark.parametrize(
    ("dtype", "bias_dtype"),
    [*((each, each) for each in (torch.float32, torch.bfloat16)), *MIXED],
    ids=str,
)
@pytest.mark.parametrize(("width", "maps", "parts"), [(16, 1, 1), (24, 3, 3), (400, 4, 3)])
def test_sums_become_gradients(width, maps, parts, dtype, bias_dtype):
    sums = torch.randn(maps, parts, width, width + 16, device="cuda")
    dU, db = finished(sums, Shape(width, maps, PLAIN, False), dtype, bias_dtype)
    whole = sums.sum(1)
    torch.testing.assert_close(dU, whole[:, :, :width].to(dtype))
    torch.testing.assert_close(db, whole[:, :, width].to(bias_dtype))


@on_hopper
def test_what_it_cannot_encode_is_said():
    def missing(V=128, d=16, dtype=torch.bfloat16, depth=4, **changes):
        E = torch.zeros(V, d, device="cuda")
        return chain_missing(E, dtype, PLAIN._replace(**changes), depth)

    assert missing() is missing(d=400) is missing(depth=16) is None
    assert missing(locked=True, mask_in=False) is None  # nothing is dropped
    assert "128 labels and more" in missing(V=127)
    assert missing(d=20) == missing(d=408) == missing(d=8) == missing(depth=17) == missing(V=0)
    assert "bfloat16" in missing(dtype=torch.float16)
    assert "no norm" in missing(norm=True)
    assert "locked" in missing(locked=True)


STANDARD = {"dropout": 0.6, "locked": False}
CASES = [
    ((1000, 400), {"activation": "relu", "depth": 4, **STANDARD}),
    ((2331, 280), {"activation": "gelu", "depth": 8, **STANDARD}),
    ((1900, 64), {"activation": "relu", "depth": 2, "dropout_at": "output", **STANDARD}),
    ((700, 136), {"activation": "sigmoid", "depth": 3, "dropout_at": "output", **STANDARD}),
    ((1300, 400), {"activation": "tanh", "depth": 4, "residual": False, **STANDARD}),
    ((900, 24), {"activation": "sigmoid", "depth": 4, "map_bias": False}),
    ((160, 400), {"activation": "none", "depth": 1, **STANDARD}),
    ((128, 16), {"activation": "none", "depth": 3, "residual": False, "map_bias": False}),
    ((600, 64), {"activation": "silu", "depth": 9, **STANDARD}),
    ((MANY, 32), {"activation": "sigmoid", "depth": 2, **STANDARD}),
    # More tiles than blocks, so that a block has several; widths that are padded.
    ((33_278, 280), {"activation": "relu", "depth": 4, **STANDARD}),
    ((17_100, 24), {"activation": "tanh", "depth": 3, **STANDARD}),
]
every_case = pytest.mark.parametrize(
    ("size", "options"),
    CASES,
    ids=[f"{V}x{d}-" + "-".join(map(str, options.values())) for (V, d), options in CASES],
)


@pytest.fixture
def chained(monkeypatch):
    """Fails where the labels were encoded otherwise."""
    apply = Mock(wraps=ChainEncode.apply)
    monkeypatch.setattr(ChainEncode, "apply", apply)
    yield
    apply.assert_called()


def by_chain(test):
    """Marks a test whose labels are encoded in one launch."""
    return on_hopper(pytest.mark.usefixtures("chained")(test))


@by_chain
@every_case
def test_no_less_exact_than_the_loop(size, options):
    layer, masks, grad = given(*size, "cuda", **options)
    assert_no_less_exact(layer, masks, grad, torch.bfloat16)


@by_chain
@every_case
def test_labels_in_float32_under_autocast(size, options):
    layer, masks, grad = given(*size, "cuda", **options)
    with torch.autocast("cuda", torch.bfloat16):
        fused, loop = (solve(layer, encoder, masks, grad) for encoder in ("triton", "reference"))
    exact = solve(copy.deepcopy(layer).double(), "reference", masks, grad.double())
    assert [each.dtype for each in fused] == [each.dtype for each in loop]
    for a, b in zip(relative(fused, exact), relative(loop, exact), strict=True):
        assert a < 1.5 * b + 1e-3


@by_chain
@every_case
def test_repeats_bit_by_bit(size, options):
    layer, masks, grad = given(*size, "cuda", **options)
    layer = layer.bfloat16()
    first, second = (solve(layer, "triton", masks, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@by_chain
@pytest.mark.parametrize("labels", [128, 129, 255, 256, 257, 300, 384, 385])
def test_any_number_of_labels(labels):
    layer, masks, grad = given(labels, 48, "cuda", activation="tanh", **STANDARD)
    layer = layer.bfloat16()
    with_masks(layer, masks)
    found = solve(layer, "triton", masks, grad)
    truth = solve(copy.deepcopy(layer).double(), "reference", masks, grad.bfloat16().double())
    assert max(relative(found, truth)) < 2e-2
    layer.impl = "triton"
    encoded = layer.labels()
    padding = -labels % 64
    after = encoded.detach().as_strided((labels + padding, 48), (48, 1))[labels:]
    assert not after.any()


@by_chain
@pytest.mark.parametrize("activation", ACTIVATION_CODES)
@pytest.mark.parametrize(("size", "bad"), [((300, 64), 130), ((17_100, 24), 5)])
def test_a_nan_in_one_label_stays_with_that_label(activation, size, bad):
    """Nor does it spread by the rows that pad a tile: with 132 multiprocessors a block has a second
    tile from 16,896 labels on."""
    layer = build(*size, "cuda", activation=activation, dropout=0.5, locked=False).bfloat16()
    layer.impl = "triton"
    with torch.no_grad():
        layer.label_weight[bad, 2] = torch.nan
    labels = layer.labels()
    assert labels.isnan().any(1).nonzero().flatten().tolist() == [bad]
    labels.sum().backward()
    gradient = layer.label_weight.grad
    assert not gradient[torch.arange(size[0]) != bad].isnan().any()


@by_chain
def test_no_gradient_passes_where_relu_rests_at_zero():
    layer = build(200, 64, "cuda", activation="relu", depth=2, map_bias=False).bfloat16()
    with torch.no_grad():
        layer.label_weight[7] = 0.0
    grad = torch.randn(200, 64, device="cuda").bfloat16()
    fused, loop = (solve(layer, encoder, None, grad) for encoder in ("triton", "reference"))
    assert torch.equal(fused[1][7], loop[1][7])


@by_chain
def test_a_recorded_encoding_replays():
    layer, masks, grad = given(700, 400, "cuda", activation="relu", depth=4, **STANDARD)
    assert_replays(layer.bfloat16(), masks, grad, times=2)
