"""AveragedSgd against its definition and torch's ASGD; NonMonotonicTrigger, clipping, schedules."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drill.training.optim import AveragedSgd, NonMonotonicTrigger, averaged, schedules

pytestmark = pytest.mark.usefixtures("fixed_seed")


@pytest.fixture
def float64():
    """torch's ASGD keeps its rates in the default dtype; float32 ones would hide behind 1e-8."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# -- averaged SGD ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_asgd_of_torch(float64, seed, weight_decay):
    torch.manual_seed(seed)
    shapes = [(3, 4), (5,), (), (2, 1, 3)]
    start = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([nn.Parameter(x.clone()) for x in start] for _ in range(2))
    mine = AveragedSgd(ours, lr=0.1, weight_decay=weight_decay)
    peer = torch.optim.ASGD(theirs, lr=0.1, t0=0, lambd=0, weight_decay=weight_decay)
    for step in range(40):
        lr = 0.1 * torch.rand(()).item()
        mine.param_groups[0]["lr"] = peer.param_groups[0]["lr"] = lr
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            grad = torch.randn(a.shape)
            left_out = i == 1 and step % 3 == 0  # joins late and skips steps
            a.grad, b.grad = (None, None) if left_out else (grad, grad.clone())
        mine.step()
        peer.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
            if b in peer.state:
                ax = peer.state[b]["ax"]
                torch.testing.assert_close(mine.state[a]["average"], ax, rtol=0, atol=1e-12)


def test_a_step_never_waits_for_the_device():
    p = nn.Parameter(torch.empty(3, 4, device="meta"))
    optimizer = AveragedSgd([p], lr=0.1, weight_decay=0.1)
    for _ in range(4):
        p.grad = torch.empty_like(p)
        optimizer.step()  # reading a number of a meta tensor is an error
    with averaged(optimizer):
        pass


def test_averaged_restores_after_an_error_and_needs_a_step():
    w, frozen = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.full((2,), 9.0))
    optimizer = AveragedSgd([w, frozen], lr=1.0)
    with pytest.raises(RuntimeError, match="no average before the first step"), averaged(optimizer):
        pass
    for _ in range(3):
        w.grad = torch.tensor([-1.0, 1.0])
        optimizer.step()
    place = w.data_ptr()
    with averaged(optimizer):
        assert w.tolist() == [2.5, -2.5]
        assert w.data_ptr() == place  # cuDNN reads the weights of an LSTM from one buffer
        assert frozen.tolist() == [9.0, 9.0]  # it has no average
    with pytest.raises(KeyError), averaged(optimizer):
        raise KeyError
    assert w.tolist() == [3.0, -3.0]


# -- the trigger ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(0, 7))
def test_trigger_against_its_definition(losses, patience):
    truth = [
        n
        for n, loss in enumerate(losses, 1)
        if n - 1 > patience and loss > min(losses[: n - 1 - patience])
    ]
    trigger = NonMonotonicTrigger(patience)
    fired = [n for n, loss in enumerate(losses, 1) if trigger.update(float(loss))]
    assert len(fired) == int(trigger.triggered)  # once or never
    assert fired == truth[:1]


# -- schedules ------------------------------------------------------------------------------------


def test_one_cycle_is_the_schedule_of_torch(monkeypatch):
    monkeypatch.setattr(schedules, "RESOLUTION", 37)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    peer = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3.0, total_steps=37, pct_start=0.2)
    for step in range(1, 38):
        done = (step - 0.5) / 36
        found = schedules.run_rate(done, lr=3.0, schedule="one-cycle", warmup=0.2)
        assert found == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        if step < 37:
            peer.step()


def test_inverse_sqrt_by_hand():
    def rate(step):
        return schedules.inverse_sqrt_rate(step, lr=2.0, warmup_steps=4000)

    assert [rate(1), rate(4000), rate(16_000)] == pytest.approx([2 / 4000, 2.0, 1.0])
    assert max(range(3990, 4010), key=rate) == 4000


W = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: NonMonotonicTrigger(-1), "patience"),
        (lambda: AveragedSgd([W], lr=-1.0), "lr"),
        (lambda: AveragedSgd([W], lr=math.nan), "lr"),
        (lambda: AveragedSgd([W], lr=1.0, weight_decay=-1.0), "weight_decay"),
        (lambda: NonMonotonicTrigger().update(math.nan), "the loss is NaN"),
    ],
)
def test_wrong_input_is_named(call, key):
    with pytest.raises(ValueError, match=f": {key}"):
        call()
