"""The LSTM layer: the equation, PyTorch's own, and the persistent kernel against float64."""

import math

import pytest
import torch
from torch import nn

from drill.kernels.lstm.lstm import choose, in_one_buffer, in_words, lie_together, lstm, lstm_stack
from drill.kernels.lstm.persistent import layout as layout_module
from drill.kernels.lstm.persistent import recurrence
from drill.kernels.lstm.persistent.layout import cut, layout
from drill.kernels.lstm.persistent.recurrence import unsupported_reason
from drill.kernels.lstm.weights import Weights
from drill.kernels.runtime import nvrtc, stalls
from drill.kernels.runtime.dispatch import log_once
from drill.kernels.runtime.hopper import SHARED
from drill.models import AwdLstm
from tests.helpers.devices import needs_hopper, needs_triton, on_hopper
from tests.kernels.lstm.problems import differentiate, errors, problem, same_bits, solve


def test_a_wider_input_is_cut_where_nobody_asked_for_padding():
    x, h, c, weights, _ = problem(4, 2, 6, 8)
    wide = torch.cat([x, torch.zeros(4, 2, 2, dtype=x.dtype)], dim=2)
    for impl in ("reference", "cudnn"):
        assert torch.equal(lstm(wide, h, c, weights, impl)[0], lstm(x, h, c, weights, impl)[0])


@pytest.mark.parametrize(
    ("wrong", "changed"),
    [
        ("x", {"x": (0, 2, 6)}),
        ("x", {"x": (4, 0, 6), "h": (1, 0, 8), "c": (1, 0, 8)}),
        ("x", {"x": (4, 6)}),
        ("x", {"x": (4, 2, 5)}),
        ("h and c", {"h": (1, 3, 8)}),
        ("h and c", {"c": (2, 8)}),
        ("weights", {"w_ih": (28, 6)}),
        ("weights", {"w_hh": (32, 7)}),
        ("weights", {"b_hh": (8,)}),
    ],
)
@pytest.mark.parametrize("impl", ["auto", "reference", "persistent", "graph"])
def test_sizes_that_do_not_fit_raise_before_a_kernel_reads(wrong, changed, impl):
    shapes = {"x": (4, 2, 6), "h": (1, 2, 8), "c": (1, 2, 8)}
    shapes |= {"w_ih": (32, 6), "w_hh": (32, 8), "b_ih": (32,), "b_hh": (32,)} | changed
    x, h, c, *weights = (torch.zeros(shape) for shape in shapes.values())
    with pytest.raises(ValueError, match=f"lstm: {wrong} "):
        lstm(x, h, c, Weights(*weights), impl)


def test_every_choice_is_logged_once(caplog):
    log_once.cache_clear()
    x, h, c, weights, _ = problem(2, 1, 3, 4)
    with caplog.at_level("INFO", logger="drill"):
        for impl in ("auto", "reference", "auto"):
            lstm(x, h, c, weights, impl)
    assert caplog.messages == ["lstm: PyTorch's own (on a CPU)", "lstm: reference (requested)"]


def test_the_choice_says_why():
    x, h, c, weights, _ = problem(2, 1, 3, 4)
    assert choose("auto", x, weights.w_hh) == ("cudnn", "on a CPU")
    with torch.autocast("cpu", torch.bfloat16):
        assert choose("auto", x.float(), weights.w_hh.float()) == ("cudnn", "on a CPU")
    assert choose("auto", x.to("meta"), weights.w_hh) == ("cudnn", "on meta")
    assert in_words("cudnn", torch.device("cuda:0")) == "cudnn"
    with pytest.raises(ValueError, match=r"persistent.*NVIDIA GPU"):
        lstm(x, h, c, weights, "persistent")
    with pytest.raises(ValueError, match="impl must be"):
        choose("fast", x, weights.w_hh)


@pytest.mark.parametrize("share", [1.0, 1.5, -0.1, math.nan])
def test_dropout_outside_zero_to_one_and_stacks_of_other_sizes_raise(share):
    x, h, c, weights, _ = problem(3, 2, 4, 5)
    with pytest.raises(ValueError, match=r"^lstm: drop "):
        lstm(x, h, c, weights, drop=share)
    with pytest.raises(ValueError, match=r"^lstm_stack: between "):
        lstm_stack(x, [(h, c)], [weights], between=share)
    for states, layers in ([], []), ([(h, c)] * 2, [weights]):
        with pytest.raises(ValueError, match=r"^lstm_stack: weights must be of at least one"):
            lstm_stack(x, states, layers)


def test_weights_that_lie_together_are_not_copied():
    weights = [torch.randn(4, 3), torch.randn(4, 1), torch.randn(4)]
    assert not lie_together(weights)
    assert lie_together(in_one_buffer(weights))
    assert not lie_together(in_one_buffer(weights)[::-1])


# -- the persistent kernel's arrangement ----------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 16, 100, 280, 400, 576, 577, 650, 960, 1024, 1150])
def test_a_layout_shares_the_units_evenly(hidden):
    found = layout(hidden, 16)
    assert found is not None
    assert hidden <= found.hidden < hidden + 32
    for shape, rows in ((found.forward, 4), (found.backward, 1)):
        assert shape.hidden == found.hidden
        assert shape.share % 16 == 0  # columns of the matrix instruction
        assert shape.share * shape.cluster * rows == 4 * shape.hidden
        assert shape.share <= layout_module.COLUMNS
        assert shape.blocks % shape.cluster == 0
        # the rows that a cluster's warpgroups hold are those of its blocks' units
        assert shape.cluster * layout_module.UNITS * rows == shape.warpgroups * layout_module.ROWS
        spare = shape.blocks * layout_module.UNITS - found.hidden
        assert 0 <= spare < layout_module.ROWS * shape.warpgroups


@pytest.mark.parametrize("clusters", [16, 14, 9, 8])
def test_every_layout_fits_the_device(clusters):
    fitting = [found for h in range(1, 1400) if (found := layout(h, clusters))]
    assert len(fitting) == (1152 if clusters > 8 else 1024)
    assert all(shape.blocks <= 8 * clusters for found in fitting for shape in found)


@pytest.mark.parametrize("hidden", [16, 576, 608, 1152])
def test_every_group_fits_the_shared_memory(hidden):
    most = SHARED - layout_module.BARRIERS
    tiles = -(-layout_module.LARGEST_GROUP // 8)
    for shape in layout(hidden, 16):
        assert shape.shared(tiles, layout_module.GROUPS) <= most
        assert shape.threads <= 512


def test_what_does_not_fit_is_said(monkeypatch):
    assert layout(1153, 16) is None
    assert unsupported_reason(torch.device("cpu"), 400, 1) == "it needs an NVIDIA GPU, not cpu"
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(recurrence, "_cluster_count", lambda index: 16)
    monkeypatch.setattr(nvrtc, "unavailable_reason", lambda: None)
    assert unsupported_reason(device, 1150, 80) is None
    assert unsupported_reason(device, 1150, 81) == "a batch of 81 is over 80"
    assert "hidden size 2048" in unsupported_reason(device, 2048, 1)
    monkeypatch.setattr(nvrtc, "unavailable_reason", lambda: "NVRTC is not found")
    assert unsupported_reason(device, 1150, 1) == "NVRTC is not found"


def test_batches_are_cut_evenly_and_no_group_is_without_rows():
    for batch in range(1, layout_module.LARGEST_BATCH + 1):
        found, groups = cut(batch), -(-batch // layout_module.LARGEST_GROUP)
        assert found.groups == groups <= layout_module.GROUPS
        assert found.size == -(-batch // groups)
        assert 8 * found.tiles <= layout_module.LARGEST_GROUP
        assert (groups - 1) * found.size < batch


# -- on a Hopper GPU ------------------------------------------------------------------------------


COMMON = [
    *((70, 20, 400, 1150), (70, 20, 1150, 400), (1, 1, 400, 1150), (5, 3, 16, 64)),
    *((37, 10, 400, 400), (33, 37, 280, 960), (140, 80, 400, 400), (9, 80, 300, 650)),
    *((2, 41, 64, 100), (70, 80, 1150, 1150)),
]
ONLY_PERSISTENT = [
    *((70, 20, 1150, 1150), (9, 40, 1150, 1150)),
    *((9, 20, 300, 1024), (9, 20, 300, 1050), (3, 61, 16, 590)),
]
LARGER = (9, 100, 300, 650)
KERNELS = {"persistent": needs_hopper, "graph": needs_triton}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("impl", "sizes"),
    [
        pytest.param(impl, sizes, marks=KERNELS[impl])
        for impl, more in (("persistent", ONLY_PERSISTENT), ("graph", [(140, 1, 30, 2050), LARGER]))
        for sizes in [*COMMON, *more]
    ],
)
def test_kernels_are_near_float64_and_repeat_their_bits(impl, sizes):
    truth = solve("cudnn", *problem(*sizes, device="cuda"))
    given = problem(*sizes, device="cuda", dtype=torch.float32)
    found, again = solve(impl, *given), solve(impl, *given)
    wrong = errors(found, truth)
    assert max(wrong[:3]) < 4e-3
    assert max(wrong[3:]) < 6e-3
    assert same_bits(found, again)
    assert not stalls.take_stall()


@on_hopper
@pytest.mark.parametrize("gate", [0, 3], ids=["input", "output"])
def test_closed_gates_are_as_exact_as_open_ones(gate):
    """Errors are of what little passes.

    In a model in float64 of these sizes with 100 units, products rounded as here, they are at most
    3.6e-3; with sigmoids from a tanh that is off by 2^-11 they are up to 4.7e-2 and 5.8e-2.
    """
    sizes = (70, 20, 64, 400)

    def closed(dtype):
        given = problem(*sizes, device="cuda", dtype=dtype)
        with torch.no_grad():
            given[3].b_ih.view(4, -1)[gate] -= 6.0
            torch._foreach_zero_(list(given[1:3]))  # or they would be most of what is compared
        return given

    wrong = errors(
        solve("persistent", *closed(torch.float32)), solve("cudnn", *closed(torch.float64))
    )
    assert max(wrong[:3]) < 4e-3
    assert max(wrong[3:]) < 6e-3


@pytest.mark.gpu
@pytest.mark.parametrize("impl", [pytest.param(impl, marks=KERNELS[impl]) for impl in KERNELS])
def test_kernels_are_no_worse_than_cudnn_in_bfloat16(impl):
    sizes = (70, 20, 400, 1150)
    truth = solve("cudnn", *problem(*sizes, device="cuda"))
    ours = errors(solve(impl, *problem(*sizes, device="cuda", dtype=torch.float32)), truth)
    theirs = errors(solve("cudnn", *problem(*sizes, device="cuda", dtype=torch.bfloat16)), truth)
    assert all(a <= 1.1 * b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cudnn_computes_in_the_dtype_of_autocast(dtype):
    """PyTorch's own autocast takes float16 for it, always."""
    x, h, c, weights, _ = problem(12, 4, 16, 64, device="cuda", dtype=torch.float32)
    with torch.autocast("cuda", dtype):
        found = lstm(x, h, c, weights, "cudnn")
    narrow = [tensor.to(dtype) for tensor in (x, h, c, *weights)]
    wanted = lstm(*narrow[:3], Weights(*narrow[3:]), "cudnn")
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b)
    gradients = torch.autograd.grad(found[0].float().sum(), [x, *weights])
    assert all(each.dtype == torch.float32 and each.isfinite().all() for each in gradients)


@on_hopper
def test_the_encoder_takes_it_under_autocast_and_drops_weights_there_too():
    torch.manual_seed(0)
    off = {f"dropout_{site}": 0.0 for site in ("embedding", "input", "hidden", "output")}
    encoder = AwdLstm(nn.Embedding(50, 48), 100, 3, **off, weight_drop=0.5).cuda()
    ids = torch.randint(50, (9, 6), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        weight = encoder.lstms[0].weight_hh_l0
        assert choose("auto", encoder.embedding(ids), weight)[0] == "persistent"
        one, other = encoder(ids).output, encoder(ids).output
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[1:], other[1:])
    one.float().sum().backward()
    zeros = (encoder.lstms[0].weight_hh_l0.grad == 0).float().mean().item()
    assert 0.4 < zeros < 0.6
    encoder.eval()
    exact = encoder(ids).output.detach()
    with torch.autocast("cuda", torch.bfloat16):
        near = encoder(ids).output.detach()
    assert float((near.float() - exact).norm() / exact.norm()) < 1e-2


@on_hopper
def test_weights_may_change_before_their_backward():
    x, h, c, weights, wanted = problem(5, 3, 16, 64, device="cuda", dtype=torch.float32)
    truth = solve("persistent", x, h, c, weights, wanted)[3:]
    results = lstm(x, h, c, weights, "persistent")
    with torch.no_grad():
        torch._foreach_zero_(list(weights))
    assert same_bits(differentiate(results, wanted, [x, h, c, *weights]), truth)


@on_hopper
def test_a_nan_with_the_bits_of_a_mark_is_not_waited_on():
    x, h, c, weights, _ = problem(4, 3, 16, 64, device="cuda", dtype=torch.bfloat16)
    h = h.detach().clone()
    h.view(torch.int16)[0, 1] = -1
    output, _, _ = lstm(x, h, c, weights, "persistent")
    assert output[:, 1].isnan().all()
    assert output[:, [0, 2]].isfinite().all()
    assert not stalls.take_stall()
