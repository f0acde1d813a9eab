"""The LSTM layer: the equation, PyTorch's own, and the persistent kernel against float64."""

import pytest
import torch
from torch import nn

from drill.encoders import AwdLstm
from drill.kernels import lstm_persistent
from drill.kernels.lstm import Weights, choose, in_one_buffer, lie_together, lstm
from drill.kernels.lstm_persistent import layout, supported
from tests.kernels.lstm_problems import errors, problem, solve


@pytest.mark.parametrize("sizes", [(1, 1, 3, 5), (7, 4, 6, 8)])
def test_the_reference_is_the_library(sizes):
    given = problem(*sizes)
    found, truth = solve("reference", *given), solve("cudnn", *given)
    for a, b in zip([*found[0], *found[1]], [*truth[0], *truth[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_reference_has_the_gradients_it_should():
    x, h, c, weights, _ = problem(3, 2, 2, 3)

    def run(*tensors):
        return lstm(*tensors[:3], Weights(*tensors[3:]), "reference")

    assert torch.autograd.gradcheck(run, (x, h, c, *weights))


def test_a_wider_input_is_cut_where_nobody_asked_for_padding():
    x, h, c, weights, _ = problem(4, 2, 6, 8)
    wide = torch.cat([x, torch.zeros(4, 2, 2, dtype=x.dtype)], dim=2)
    for impl in ("reference", "cudnn"):
        assert torch.equal(lstm(wide, h, c, weights, impl)[0], lstm(x, h, c, weights, impl)[0])


def test_the_choice_says_why():
    x, _, _, weights, _ = problem(2, 1, 3, 4)
    assert choose("auto", x, weights.w_hh) == ("cudnn", "products are not in bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        name, reason = choose("auto", x.float(), weights.w_hh.float())
    assert (name, reason) == ("cudnn", "it needs an NVIDIA GPU, not cpu")
    assert choose("reference", x, weights.w_hh) == ("reference", "asked for")
    with pytest.raises(ValueError, match="persistent does not run here: it needs an NVIDIA GPU"):
        lstm(x, *problem(2, 1, 3, 4)[1:4], "persistent")
    with pytest.raises(
        ValueError, match="impl is one of auto, reference, cudnn, persistent, graph"
    ):
        choose("fast", x, weights.w_hh)
    with pytest.raises(ValueError, match="AwdLstm: impl is one of"):
        AwdLstm(nn.Embedding(5, 4), 6, 2, impl="fast")


def test_weights_that_lie_together_are_not_copied():
    weights = [torch.randn(4, 3), torch.randn(4, 1), torch.randn(4)]
    assert not lie_together(weights)
    assert lie_together(in_one_buffer(weights))
    assert not lie_together(in_one_buffer(weights)[::-1])


# -- the persistent kernel's arrangement ----------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 16, 100, 280, 400, 620, 650, 960, 1024, 1150])
def test_a_layout_shares_the_units_evenly(hidden):
    found = layout(hidden, 132)
    assert found is not None
    assert found.hidden >= hidden
    for shape, cluster in ((found.forward, 1), (found.backward, 4)):
        assert shape.hidden == found.hidden
        assert shape.units % 4 == 0  # rows of the matrix instruction, and whole pairs to store
        assert shape.blocks * shape.units == shape.hidden
        assert shape.blocks <= 132
        assert shape.blocks % cluster == 0
        assert shape.hidden % (16 * shape.warps) == 0
        assert shape.units * (shape.hidden // shape.warps) // 16 <= lstm_persistent.REGISTERS


def test_the_paper_s_layers_need_next_to_no_padding():
    assert layout(1150, 132).hidden == 1152
    assert layout(400, 132).hidden == 400


def test_what_does_not_fit_is_said():
    assert layout(2048, 132) is None
    assert supported(torch.device("cpu"), 400) == "it needs an NVIDIA GPU, not cpu"


def test_batches_are_cut_evenly():
    assert lstm_persistent._tiles(20) == [(0, 20)]
    assert lstm_persistent._tiles(80) == [(0, 40), (40, 40)]
    assert lstm_persistent._tiles(100) == [(0, 34), (34, 34), (68, 32)]


# -- on a Hopper GPU ------------------------------------------------------------------------------


def needs_hopper():
    reason = supported(torch.device("cuda", 0), 400)
    if reason:
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes",
    [
        *((70, 20, 400, 1150), (70, 20, 1150, 1150), (70, 20, 1150, 400), (1, 1, 400, 1150)),
        *((5, 3, 16, 64), (37, 10, 400, 400), (33, 37, 280, 960), (140, 80, 400, 400)),
        *((9, 100, 300, 650), (2, 41, 64, 100)),
    ],
)
def test_persistent_is_near_float64_and_repeats_its_bits(sizes):
    needs_hopper()
    truth = solve("cudnn", *problem(*sizes, device="cuda"))
    given = problem(*sizes, device="cuda", dtype=torch.float32)
    found, again = solve("persistent", *given), solve("persistent", *given)
    wrong = errors(found, truth)
    assert max(wrong[:3]) < 4e-3
    assert max(wrong[3:]) < 6e-3
    for a, b in zip([*found[0], *found[1]], [*again[0], *again[1]], strict=True):
        assert torch.equal(a, b)
    assert not lstm_persistent.stalled()


@pytest.mark.gpu
def test_persistent_is_no_worse_than_cudnn_in_bfloat16():
    needs_hopper()
    sizes = (70, 20, 400, 1150)
    truth = solve("cudnn", *problem(*sizes, device="cuda"))
    ours = solve("persistent", *problem(*sizes, device="cuda", dtype=torch.float32))
    theirs = solve("cudnn", *problem(*sizes, device="cuda", dtype=torch.bfloat16))
    assert all(
        a <= 1.1 * b for a, b in zip(errors(ours, truth), errors(theirs, truth), strict=True)
    )


@pytest.mark.gpu
def test_persistent_hands_nan_on():
    needs_hopper()
    x, h, c, weights, _ = problem(12, 4, 16, 64, device="cuda", dtype=torch.float32)
    x = x.detach().clone()
    x[5, 2] = torch.nan
    output, _, _ = lstm(x, h, c, weights, "persistent")
    assert output[:5].isfinite().all()
    assert output[5:, 2].isnan().all()
    assert output[:, [0, 1, 3]].isfinite().all()


@pytest.mark.gpu
def test_the_encoder_takes_it_under_autocast_and_drops_weights_there_too():
    needs_hopper()
    torch.manual_seed(0)
    encoder = AwdLstm(
        nn.Embedding(50, 48),
        100,
        3,
        **dict.fromkeys(
            [f"dropout_{site}" for site in ("embedding", "input", "hidden", "output")], 0.0
        ),
        weight_drop=0.5,
    ).cuda()
    ids = torch.randint(50, (9, 6), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert (
            choose("auto", encoder.embedding(ids), encoder.lstms[0].weight_hh_l0)[0] == "persistent"
        )
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
