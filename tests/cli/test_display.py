"""Progress of long work, where there is no terminal."""

import math

import pytest

from drill.cli import display
from drill.training.progress import Progress, rough_duration


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_lines_come_soon_at_first_and_then_once_a_minute(clock, capsys):
    """Of 400 seconds; the time left is known from the fourth on."""
    lines = {}
    with display.TrainingDisplay() as shown:
        shown.say("training")
        capsys.readouterr()
        for now in range(1, 400):
            clock[0] = float(now)
            left = 400.0 - now if now >= 4 else math.inf
            shown.show(Progress(1, 1, now / 400, now, 2.0, 100.0, left))
            if line := capsys.readouterr().err:
                lines[now] = line
    assert [*lines] == [2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364]
    assert lines[2] == "epoch 1    0%  train loss 2.000  ppl 7.4\n"
    assert lines[4] == "about 7 min to go (estimated at step 4)\n"
    assert lines[8] == "epoch 1    2%  train loss 2.000  ppl 7.4  100 tokens/s  6:32 left\n"


@pytest.mark.parametrize(
    ("seconds", "said"), [(99, "99 s"), (100, "2 min"), (5999, "100 min"), (6000, "1.7 h")]
)
def test_an_estimate_is_rough(seconds, said):
    assert rough_duration(seconds) == said


def test_counting_prints_how_far_it_is(clock, capsys):
    for quiet, printed in ((False, "data  2,000 of 9,000\n"), (True, "")):
        clock[0] = 0.0
        with display.counting("data", quiet) as count:
            count(1000, 9000)
            clock[0] = 11.0
            count(2000, 9000)
            count(3000, None)
        assert capsys.readouterr().err == printed
