"""Several LSTM layers in one call on a Hopper GPU: their bits, their streams, their recordings."""

from contextlib import contextmanager

import pytest
import torch

from drill.kernels.lstm.lstm import lstm_stack
from drill.kernels.lstm.persistent import stack_backward, stack_forward
from drill.kernels.runtime import stalls, streams
from tests.helpers.devices import captured, needs_hopper
from tests.kernels.lstm.problems import (
    flat,
    gradients,
    one_by_one,
    same_bits,
    set_interleave,
    solved,
    stack,
)

pytestmark = [pytest.mark.gpu, needs_hopper]

PAPER = [400, 1150, 1150, 400]


def on_gpu(sizes, steps, batch, **options):
    return stack(sizes, steps, batch, device="cuda", dtype=torch.float32, **options)


@pytest.mark.parametrize(
    ("sizes", "steps", "batch"),
    [(PAPER, 70, 20), (PAPER, 37, 80), ([16, 64], 5, 3), ([30, 650, 100], 9, 80), (PAPER, 1, 1)],
)
@pytest.mark.parametrize("interleave", [False, True])
def test_a_persistent_stack_has_the_bits_of_its_layers(
    interleave, sizes, steps, batch, monkeypatch
):
    set_interleave(monkeypatch, interleave)
    *given, wanted = on_gpu(sizes, steps, batch)
    expected = solved(one_by_one(*given, "persistent"), given, wanted)
    for _ in range(3):
        assert same_bits(solved(lstm_stack(*given, "persistent"), given, wanted), expected)
    assert not stalls.take_stall()


@pytest.mark.parametrize("steps", [35, 36])
@pytest.mark.parametrize("batch", [1, 3, 10, 20])
def test_pieces_change_no_more_than_a_last_bit(batch, steps, monkeypatch):
    """Of a sum of products, for cuBLAS may cut few rows otherwise than many."""
    *given, wanted = on_gpu(PAPER, steps, batch)

    def run(interleave):
        set_interleave(monkeypatch, interleave)
        return solved(lstm_stack(*given, "persistent"), given, wanted)

    apart, one, other = run(False), run(True), run(True)
    assert same_bits(one, other)
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(one, apart, strict=True)]
    assert max(errors) < 4e-3  # what it is to round all of them to bfloat16 once
    assert not stalls.take_stall()


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("late", ["steps", "weights"])
def test_no_stream_runs_ahead_of_the_other(late, interleave, monkeypatch):
    """What is in memory is other when one stream comes late, should the other not wait for it."""
    set_interleave(monkeypatch, interleave)
    *given, wanted = on_gpu([64, 100, 650, 80], 36, 20)
    expected = solved(lstm_stack(*given, "persistent"), given, wanted)

    def delayed(module, name):
        whole = getattr(module, name)

        def run(*args, **options):
            torch.cuda._sleep(3_000_000)
            return whole(*args, **options)

        monkeypatch.setattr(module, name, run)

    @contextmanager
    def delayed_stream(first, whole=streams.second_stream):
        with whole(first) as second:
            with torch.cuda.stream(second):
                torch.cuda._sleep(3_000_000)
            yield second

    if late == "steps":
        delayed(stack_forward, "run_forward")
        delayed(stack_backward, "run_backward")
    else:
        monkeypatch.setattr(stack_forward, "second_stream", delayed_stream)
        monkeypatch.setattr(stack_backward, "second_stream", delayed_stream)
        delayed(stack_backward, "weights_gradients")
    for _ in range(3):
        results = lstm_stack(*given, "persistent")
        found = solved(results, given, wanted)
        del results
        torch.full((64, 2**20), torch.nan, device="cuda")  # in what was freed too early
        assert same_bits(found, expected)


def test_replays_of_a_stack_are_its_launches():
    *given, wanted = on_gpu(PAPER, 70, 20)
    x, states, weights = given

    def step():
        results = lstm_stack(x, states, weights, "persistent", drop=0.5, between=0.3)
        made = gradients(results, given, wanted)
        return [*(each.detach() for each in flat(results)), *made]  # nothing of their graph

    graph, replayed = captured(step)
    for seed in (1, 2):
        torch.manual_seed(seed)
        graph.replay()
        torch.manual_seed(seed)
        launched = step()
        assert same_bits(replayed, launched)
    assert not stalls.take_stall()


def test_a_stack_hands_nan_on():
    x, states, weights, _ = on_gpu([16, 64, 650, 40], 12, 4)
    x = x.detach().clone()
    x[5, 2] = torch.nan
    output, ends = lstm_stack(x, states, weights, "persistent")
    assert output[:5].isfinite().all()
    assert output[5:, 2].isnan().all()
    assert output[:, [0, 1, 3]].isfinite().all()
    assert all(each[0, 2].isnan().all() for pair in ends for each in pair)
