"""Launches of the persistent kernel that wait for words which never come: they give up, and say so.

A launch with too few blocks stands for a GPU on which the others find no room.
"""

import time

import pytest
import torch
from torch import Tensor

from drill.kernels import lstm_persistent
from drill.kernels.lstm import lstm
from drill.kernels.lstm_layout import UNITS
from drill.kernels.lstm_persistent import EMPTY
from tests.kernels.lstm_problems import needs_hopper, problem

STEPS, BATCH, HIDDEN = 4, 5, 128
LIMIT = 10.0  # seconds; the kernel's patience is four


def marked(*shape: int) -> Tensor:
    """Words that nobody has written yet."""
    words = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
    words.view(torch.int16).fill_(EMPTY)
    return words


def launched(backward: bool, missing: int) -> tuple[Tensor, Tensor, float]:
    """Words that a pass wrote, those that its ``missing`` blocks left unwritten, and its seconds.

    Weights, inputs and states are zero: what is NaN is so because of a word that never came.
    Words are (STEPS - 1, columns / 8, BATCH, 8), in the order in which the steps are made.
    """
    device = torch.device("cuda", 0)
    layout = lstm_persistent.layout_on(device, HIDDEN)
    assert layout is not None
    assert layout.hidden == HIDDEN
    shape = layout.backward if backward else layout.forward
    made = lstm_persistent._backward_kernel if backward else lstm_persistent._forward_kernel
    kernel = made(shape, -(-BATCH // 8), 1, device)
    weight = torch.zeros(4 * HIDDEN * HIDDEN, dtype=torch.bfloat16, device=device)
    gates = torch.zeros(STEPS, BATCH, HIDDEN, 4, device=device)
    c = torch.zeros(STEPS + 1, BATCH, HIDDEN, device=device)
    by_unit = torch.zeros(BATCH, HIDDEN, 4, device=device)
    plain = torch.zeros(STEPS + 1, BATCH, HIDDEN, 4, dtype=torch.bfloat16, device=device)
    words = marked(STEPS, HIDDEN * (4 if backward else 1) // 8, BATCH, 8)
    flags = marked(2 * STEPS * shape.blocks)
    if backward:
        dout = torch.zeros_like(plain)
        given = [weight, gates, c, dout, words, flags, plain, c[0].clone(), by_unit]
    else:
        words[0] = 0.0  # the initial state
        given = [weight, by_unit, gates, words, flags, plain, c]
    flag, rescue, done = lstm_persistent.stalled_flag(0), torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()

    begin = time.monotonic()
    kernel(shape.blocks - missing, shape.threads, [*given, STEPS, BATCH, BATCH, BATCH, flag])
    done.record()
    while not done.query() and time.monotonic() - begin < LIMIT:
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    if seconds >= LIMIT:  # a launch that never ends would take every later test with it
        with torch.cuda.stream(rescue):
            words.zero_()
    torch.cuda.synchronize()

    present = (HIDDEN - missing * UNITS) * (4 if backward else 1) // 8
    in_order = words[1:].flip(0) if backward else words[1:]  # step 0 of the way back tells nobody
    return in_order[:, :present], in_order[:, present:], seconds


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_launch_that_waits_in_vain_gives_up_and_gives_nan(backward):
    needs_hopper()
    whole, _, _ = launched(backward, missing=0)
    assert whole.isfinite().all()
    assert not lstm_persistent.stalled()

    written, unwritten, seconds = launched(backward, missing=4 if backward else 1)
    assert lstm_persistent.take_stall()
    assert 3.0 < seconds < LIMIT
    assert (unwritten.view(torch.int16) == EMPTY).all()
    assert (written.view(torch.int16) != EMPTY).all()  # no block hangs on another one's words
    assert written[0].isfinite().all()  # before anything was waited for
    assert written[1:].isnan().all()

    again, _, _ = launched(backward, missing=0)
    assert torch.equal(again, whole)
    assert not lstm_persistent.stalled()


@pytest.mark.gpu
def test_a_stall_is_told_once_and_forgotten():
    needs_hopper()
    x, h, c, weights, _ = problem(4, 3, 16, 64, device="cuda", dtype=torch.float32)
    lstm_persistent.stalled_flag(x.device.index or 0).fill_(1)
    assert lstm_persistent.take_stall()
    assert not lstm_persistent.take_stall()
    assert lstm(x, h, c, weights, "persistent")[0].isfinite().all()
