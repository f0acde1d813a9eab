"""Launches of the persistent kernel that wait for words which never come: they give up, and say so.

A launch with too few blocks stands for a GPU on which the others find no room.
"""

import time
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from drill.kernels.lstm.lstm import lstm
from drill.kernels.lstm.persistent import recurrence
from drill.kernels.lstm.persistent.layout import UNITS, cut
from drill.kernels.lstm.persistent.recurrence import EMPTY
from drill.kernels.runtime import stalls
from tests.helpers.devices import needs_hopper
from tests.kernels.lstm.problems import problem

pytestmark = [pytest.mark.gpu, needs_hopper]

LIMIT = 10.0  # seconds; the kernel's patience is four


class Size(NamedTuple):
    steps: int
    batch: int
    hidden: int  # fills all clusters


SMALL = Size(4, 5, 128)  # forward no clusters, backward clusters of four
LARGE = Size(70, 80, 640)  # clusters of two and of eight, two groups that are copied in bulk


def marked(*shape: int) -> Tensor:
    """Words that nobody has written yet."""
    words = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
    words.view(torch.int16).fill_(EMPTY)
    return words


def launched(size: Size, backward: bool, *, absent: int) -> tuple[Tensor, Tensor, float]:
    """What a pass gave, what its ``absent`` last clusters did not write, and seconds.

    Weights, inputs and states are zero: what is NaN is so because of a word that never came.
    Results are (steps, batch, units, ..), in the order in which the steps are made.
    """
    steps, batch, hidden = size
    device = torch.device("cuda", 0)
    layout = recurrence.layout_on(device, hidden)
    assert layout is not None
    assert layout.hidden == hidden
    shape = layout.backward if backward else layout.forward
    assert shape.blocks * UNITS == hidden
    blocks = shape.blocks - absent * shape.cluster
    rows = cut(batch)
    kernel = recurrence._kernel(shape, rows, device)
    weight = torch.zeros(4 * hidden * hidden, dtype=torch.bfloat16, device=device)
    gates = torch.zeros(steps, batch, hidden, 4, device=device)
    c = torch.zeros(steps + 1, batch, hidden, device=device)
    by_unit = torch.zeros(batch, hidden, 4, device=device)
    words = marked(steps, batch * hidden * (4 if backward else 1))
    flags = marked(2 * rows.flags(shape, steps))
    if backward:
        result = marked(steps, batch, hidden, 4)
        dout = torch.zeros(steps, batch, hidden, dtype=torch.bfloat16, device=device)
        given = [weight, gates, c, dout, words, flags, result, c[0].clone(), by_unit]
    else:
        result = marked(steps + 1, batch, hidden)
        words[0] = 0.0  # the initial state
        given = [weight, by_unit, gates, words, flags, result, c]
    flag, rescue, done = stalls.stalled_flag(0), torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()

    begin = time.monotonic()
    alone = [0, 0] if backward else [0]  # no steps before or behind
    arguments = [*given, steps, batch, rows.size, flag, *alone]
    kernel(blocks, shape.threads, arguments, cooperative=True)
    done.record()
    while not done.query() and time.monotonic() - begin < LIMIT:
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    if seconds >= LIMIT:  # a launch that never ends would take every later test with it
        with torch.cuda.stream(rescue):
            words.zero_()
    torch.cuda.synchronize()

    in_order = result.flip(0) if backward else result[1:]
    return *in_order.tensor_split([blocks * UNITS], dim=2), seconds


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_launch_that_waits_in_vain_gives_up_and_gives_nan(size, backward):
    whole, _, _ = launched(size, backward, absent=0)
    assert whole.isfinite().all()
    assert not stalls.take_stall()

    written, unwritten, seconds = launched(size, backward, absent=1)
    assert stalls.take_stall()
    assert 3.0 < seconds < LIMIT
    assert (unwritten.view(torch.int16) == EMPTY).all()
    assert (written.view(torch.int16) != EMPTY).all()  # no block hangs on another one's words
    assert written[0].isfinite().all()  # before anything was waited for
    assert written[1:].isnan().all()

    again, _, _ = launched(size, backward, absent=0)
    assert torch.equal(again, whole)
    assert not stalls.take_stall()


def test_a_stall_is_reported_once():
    x, h, c, weights, _ = problem(4, 3, 16, 64, device="cuda", dtype=torch.float32)
    stalls.stalled_flag(x.device.index or 0).fill_(1)
    assert stalls.take_stall()
    assert not stalls.take_stall()
    assert lstm(x, h, c, weights, "persistent")[0].isfinite().all()
