"""The LSTM by per-step kernels: exact in float32, near float64 in bfloat16, and its graphs."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from drill.kernels.lstm import lstm as module
from drill.kernels.lstm.lstm import choose, lstm
from drill.kernels.lstm.persistent.layout import LARGEST_BATCH
from drill.kernels.runtime.dispatch import TRITON_INSTALLED
from drill.models import AwdLstm
from tests.helpers.devices import captured, interpreted, needs_triton
from tests.kernels.lstm.problems import differentiate, errors, problem, same_bits, solve

if TRITON_INSTALLED:
    from drill.kernels.lstm.stepwise import graph_loops, stepwise_lstm, weight_drop
    from drill.kernels.lstm.stepwise.graph_loops import pieces

pytestmark = needs_triton

SIZES = [(1, 1, 3, 5), (2, 3, 4, 16), (7, 4, 6, 8), (5, 2, 5, 37), (3, 2, 20, 140)]
VARIANTS = [("mask", "cap_input_gate"), ("cap_input_gate",), ("mask",)]


@pytest.fixture
def float32_products(monkeypatch):
    """Triton's interpreter cuts float32 to bfloat16 where a GPU rounds; so nothing is cut."""
    monkeypatch.setattr(stepwise_lstm, "OPERANDS", torch.float32)


@pytest.fixture
def replays(monkeypatch):
    """Loops that are kept, as on a GPU; a replay of a graph launches what was captured."""

    def capture(self, steps):
        self.now.fill_(torch.nan)  # a capture may leave anything there
        self.inner.fill_(torch.nan)
        self.graphs = {
            piece: SimpleNamespace(replay=lambda piece=piece: self._launch(piece))
            for piece in pieces(steps)
        }

    monkeypatch.setattr(graph_loops.Loop, "capture", capture)
    monkeypatch.setattr(graph_loops, "_replaying_stream", lambda device: 0)
    monkeypatch.setattr(graph_loops, "_loops", type(graph_loops._loops)())
    return graph_loops._loops


def masked_and_capped(batch, hidden, device="cpu"):
    """A mask of the state, and capped gates."""
    drawn = torch.rand(batch, hidden, generator=torch.Generator().manual_seed(5)) < 0.5
    return {"mask": drawn.float().mul(2).to(device), "cap_input_gate": True}


def in_float64(options):
    return {key: x.double() if key == "mask" else x for key, x in options.items()}


@interpreted
@pytest.mark.usefixtures("float32_products", "nan_in_fresh_memory")
@pytest.mark.parametrize(
    ("sizes", "variants"),
    [
        *((each, ()) for each in SIZES),
        *((each, variants) for each in SIZES[1:4:2] for variants in VARIANTS),
    ],
)
def test_results_and_gradients_are_those_of_the_equation(sizes, variants):
    possible = masked_and_capped(sizes[1], sizes[3])
    options = {key: possible[key] for key in variants}
    truth = solve("reference", *problem(*sizes), **in_float64(options))
    found = solve("graph", *problem(*sizes, dtype=torch.float32), **options)
    assert max(errors(found, truth)) < 2e-6


def test_masked_states_run_by_graph_or_by_the_equation():
    x, h, c, weights, _ = problem(2, 3, 4, 5, dtype=torch.float32)
    options = masked_and_capped(3, 5)
    assert choose("auto", x, weights.w_hh, plain=False)[0] == "reference"
    for impl in ("cudnn", "persistent"):
        with pytest.raises(ValueError, match=impl):
            lstm(x, h, c, weights, impl, **options)


@interpreted
def test_bfloat16_costs_what_rounding_costs():
    truth = solve("reference", *problem(*SIZES[3]))
    given = problem(*SIZES[3], dtype=torch.float32)
    found = solve("graph", *given)
    assert max(errors(found, truth)) < 1.2e-2  # twice that of a GPU, which rounds
    assert same_bits(solve("graph", *given), found)


@interpreted
@pytest.mark.usefixtures("float32_products", "nan_in_fresh_memory")
def test_a_padded_output_ends_in_zeros_and_feeds_the_next_layer():
    x, h, c, first, _ = problem(4, 2, 6, 9, dtype=torch.float32)
    _, h2, c2, second, _ = problem(4, 2, 9, 5, dtype=torch.float32)
    wide, _, _ = lstm(x, h, c, first, "graph", keep_padding=True)
    assert wide.shape == (4, 2, 16)
    assert torch.equal(wide[..., 9:], torch.zeros(4, 2, 7))
    narrow = lstm(x, h, c, first, "graph")[0]
    assert torch.equal(narrow, wide[..., :9])
    outputs = [lstm(each, h2, c2, second, "graph")[0] for each in (wide, narrow)]
    torch.testing.assert_close(*outputs)
    grads = (torch.autograd.grad(each.square().sum(), [x, *first, *second]) for each in outputs)
    torch.testing.assert_close(*grads)


@interpreted
@pytest.mark.usefixtures("float32_products", "nan_in_fresh_memory")
def test_what_is_frozen_has_no_gradient_and_the_rest_has_its_own():
    x, h, c, weights, wanted = problem(3, 2, 4, 5, dtype=torch.float32)
    full = solve("graph", x, h, c, weights, wanted)[3:]
    frozen = weights._replace(w_ih=weights.w_ih.detach())
    results = lstm(x.detach(), h.detach(), c, frozen, "graph")
    found = differentiate(results, wanted, [c, frozen.w_hh, frozen.b_hh])
    assert same_bits(found, [full[2], full[4], full[6]])


@interpreted
def test_nan_comes_out_from_where_it_went_in():
    x, h, c, weights, _ = problem(5, 3, 4, 6, dtype=torch.float32)
    x = x.detach().clone()
    x[2, 1] = torch.nan
    output, _, last = lstm(x, h, c, weights, "graph")
    assert output[:2].isfinite().all()
    assert output[2:, 1].isnan().all()
    assert output[:, [0, 2]].isfinite().all()
    assert last[0, 1].isnan().all()


@interpreted
@pytest.mark.usefixtures("float32_products", "nan_in_fresh_memory")
@pytest.mark.parametrize("hidden", [16, 37])
def test_weight_drop_is_a_masked_matrix_both_ways(hidden):
    drop = 0.3
    x, h, c, weights, wanted = problem(4, 3, 6, hidden, dtype=torch.float32)
    ones = torch.ones(4 * hidden, hidden)
    torch.manual_seed(3)
    seed = torch.randint(2**62, (1,))
    mask = weight_drop.masked_copy(ones, hidden, hidden, drop, seed, torch.float32)
    assert abs((mask == 0).float().mean().item() - drop) < 0.06
    torch.testing.assert_close(mask.unique(), torch.tensor([0.0, 1 / (1 - drop)]))
    torch.manual_seed(3)
    results = lstm(x, h, c, weights, "graph", drop=drop)
    masked = weights._replace(w_hh=weights.w_hh * mask)
    truth = lstm(x, h, c, masked, "reference")
    found, exact = (differentiate(each, wanted, [x, h, c, *weights]) for each in (results, truth))
    torch.testing.assert_close((*results, *found), (*truth, *exact), rtol=1e-4, atol=1e-5)
    assert (found[4] == 0).eq(mask == 0).all()
    assert not torch.equal(lstm(x, h, c, weights, "graph", drop=drop)[0], results[0])


# -- graphs ---------------------------------------------------------------------------------------


@interpreted
def test_replays_of_any_length_give_the_bits_of_launches(replays, monkeypatch):
    for steps in (1, 6):
        given = problem(steps, 2, 3, 5, dtype=torch.float32)
        found = solve("graph", *given)
        with monkeypatch.context() as launching:
            launching.setattr(graph_loops, "_replaying_stream", lambda device: None)
            assert same_bits(found, solve("graph", *given))
    assert len(replays) == 2  # forward and backward, for all lengths


@interpreted
@pytest.mark.usefixtures("replays")
def test_two_forwards_before_their_backwards_do_not_meet():
    one, other = (problem(*sizes, dtype=torch.float32) for sizes in [(5, 2, 3, 5), (3, 2, 3, 5)])
    alone = [solve("graph", *given) for given in (one, other)]
    results = [lstm(*given[:4], "graph") for given in (one, other)]
    for (x, h, c, weights, wanted), result, its in zip((one, other), results, alone, strict=True):
        assert same_bits([*result, *differentiate(result, wanted, [x, h, c, *weights])], its)


@interpreted
def test_loops_that_nobody_uses_are_let_go(replays, monkeypatch):
    monkeypatch.setattr(graph_loops, "MAXIMUM_LOOPS", 2)
    for batch in (1, 2, 1, 3):
        x, h, c, weights, _ = problem(2, batch, 3, 5, dtype=torch.float32)
        with torch.no_grad():
            lstm(x, h, c, weights, "graph")
    assert [loop.batch for loop in replays.values()] == [1, 3]


# -- the choice -----------------------------------------------------------------------------------


HOPPER, TRITON = "it needs a Hopper GPU", "Triton is not installed"


@pytest.mark.parametrize(
    ("obstacles", "impl", "reasons"),
    [
        ({}, "persistent", ["bfloat16"]),
        ({"persistent": HOPPER}, "graph", [f"not persistent: {HOPPER}"]),
        ({"persistent": HOPPER, "graph": TRITON}, "cudnn", [HOPPER, f"nor graph: {TRITON}"]),
    ],
)
def test_auto_on_a_gpu(obstacles, impl, reasons, monkeypatch):
    monkeypatch.setattr(module, "_unavailable", lambda impl, x, w: obstacles.get(impl))
    x = SimpleNamespace(device=torch.device("cuda"), is_cuda=True)
    w_hh = torch.zeros(16, 4, dtype=torch.bfloat16)
    chosen, why = choose("auto", x, w_hh)
    assert chosen == impl
    assert all(reason in why for reason in reasons)
    assert choose("auto", x, w_hh.float()) == ("cudnn", "products are not in bfloat16")


def test_graph_says_what_it_lacks(monkeypatch):
    x, h, c, weights, _ = problem(2, 1, 3, 4)
    monkeypatch.setattr(module, "triton_missing", lambda device, dtype: "Triton is not installed")
    with pytest.raises(ValueError, match="graph does not run here: Triton is not installed; use a"):
        lstm(x, h, c, weights, "graph")


# -- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(70, 64, 951, 951), (9, 5, 30, 100)])
def test_masked_and_capped_graph_rounds_less_than_autocast_and_repeats_its_bits(sizes):
    """Rounding decides which side of a cap a gate is on, so that no fixed limit holds for all."""
    options = masked_and_capped(sizes[1], sizes[3], "cuda")
    truth = solve("reference", *problem(*sizes, device="cuda"), **in_float64(options))
    given = problem(*sizes, device="cuda", dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        rounded = solve("reference", *given, **options)
    found, again = (solve("graph", *given, **options) for _ in range(2))
    assert max(errors(found, truth)) < max(errors(rounded, truth))
    assert same_bits(found, again)


@pytest.mark.gpu
def test_graphs_are_captured_once_and_serve_all_lengths(monkeypatch):
    monkeypatch.setattr(graph_loops, "_loops", type(graph_loops._loops)())
    for steps in (70, 64, 71, 3, 66):
        solve("graph", *problem(steps, 20, 30, 100, device="cuda", dtype=torch.float32))
    cached = list(graph_loops._loops.values())
    assert [sorted(loop.graphs) for loop in cached] == [[1, 2, 4, 64]] * 2
    before = [dict(loop.graphs) for loop in cached]
    solve("graph", *problem(69, 20, 30, 100, device="cuda", dtype=torch.float32))
    assert [loop.graphs for loop in cached] == before


@pytest.mark.gpu
def test_a_surrounding_capture_holds_the_steps_and_follows_its_inputs():
    given = problem(9, 20, 30, 100, device="cuda", dtype=torch.float32)
    graph, results = captured(lambda: solve("graph", *given))
    other = problem(9, 21, 30, 100, device="cuda", dtype=torch.float32)
    with torch.no_grad():
        given[0].copy_(other[0][:, :20])
    wanted = solve("graph", *given)
    solve("graph", *problem(70, 20, 30, 100, device="cuda", dtype=torch.float32))
    graph.replay()
    assert same_bits(results, wanted)


@pytest.mark.gpu
def test_the_encoder_takes_it_for_large_batches():
    torch.manual_seed(0)
    encoder = AwdLstm(nn.Embedding(50, 48), 100, 3).cuda().eval()
    ids = torch.randint(50, (9, LARGEST_BATCH + 1), device="cuda")
    exact = encoder(ids).output.detach()
    with torch.autocast("cuda", torch.bfloat16):
        weight = encoder.lstms[0].weight_hh_l0
        assert choose("auto", encoder.embedding(ids), weight)[0] == "graph"
        near = encoder(ids).output
    assert float((near.detach().float() - exact).norm() / exact.norm()) < 1e-2
    near.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
