"""Learning-rate schedules as pure functions, and ``SCHEDULES``, all of them by name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

RunSchedule = Literal["constant", "linear", "cosine"]
AnySchedule = Literal[RunSchedule, "one-cycle", "inverse-sqrt"]
SHARE_OF_RUN = "a share of the run in [0, 1)"
RESOLUTION = 1_000_000  # steps that a schedule divides a run into: its own are not known


def run_rate(
    progress: float,
    *,
    lr: float,
    schedule: RunSchedule,
    warmup: float = 0.0,
    hold: float = 0.0,
    final: float = 0.0,
) -> float:
    """A schedule over a run: up, flat, then down along a line or half a cosine.

    A trapezoid is "linear" with ``hold``.

    Args:
        progress: share of the run that is done.
        lr: the highest rate.
        schedule: "linear" or "cosine"; "constant" stays at lr.
        warmup: share of the run in which the rate rises linearly from 0 to lr.
        hold: share of the run at lr.
        final: share of lr at the end of the run.

    Returns:
        The learning rate.
    """
    at = step_of_run(progress)
    rising = int(warmup * RESOLUTION)
    if schedule == "constant":
        return lr * min(1.0, at / max(1, rising))
    if at < rising:
        return lr * at / rising
    begins = rising + int(hold * RESOLUTION)
    share = max(0.0, (at - begins) / (RESOLUTION - begins))
    if schedule == "cosine":
        return _cosine(lr, final * lr, share)
    return lr * (1.0 - share) + final * lr * share


def step_of_run(progress: float) -> int:
    """The step, from 1 to RESOLUTION, when the share ``progress`` of a run is done."""
    return 1 + int(min(max(progress, 0.0), 1.0) * (RESOLUTION - 1))


def _cosine(start: float, end: float, share: float) -> float:
    weight = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))  # exactly 1 and 0 at the ends
    return start * weight + end * (1.0 - weight)


def _one_cycle(progress: float, *, lr: float, warmup: float) -> float:
    """As OneCycleLR of torch: half a cosine from lr / 25 up, another one down to lr / 250,000."""
    at, top, last = step_of_run(progress) - 1, warmup * RESOLUTION - 1.0, RESOLUTION - 1.0
    start = lr / 25.0
    if at < top:
        return _cosine(start, lr, at / top)
    return _cosine(lr, start / 1e4, (at - top) / (last - top))


def _inverse_sqrt(progress: float, *, lr: float, warmup_steps: int, steps: int) -> float:
    """Linear up to lr at step ``warmup_steps``, then step^-0.5 ("noam")."""
    rate, peak = (min(n**-0.5, n * warmup_steps**-1.5) for n in (max(1, steps), warmup_steps))
    return lr * rate / peak


class Schedule(NamedTuple):
    rate: Callable[..., float]  # of the progress, lr and what it reads
    reads: tuple[str, ...]  # of an optimizer


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(partial(run_rate, schedule="constant"), ("warmup",)),
    "linear": Schedule(partial(run_rate, schedule="linear"), ("warmup", "hold", "final")),
    "cosine": Schedule(partial(run_rate, schedule="cosine"), ("warmup", "hold", "final")),
    "one-cycle": Schedule(_one_cycle, ("warmup",)),
    "inverse-sqrt": Schedule(_inverse_sqrt, ("warmup_steps", "steps")),
}
"""Every schedule by name; a name is also in ``AnySchedule``."""


def schedules_with(setting: str) -> list[str]:
    """The schedules that read a setting of an optimizer."""
    return [name for name, schedule in SCHEDULES.items() if setting in schedule.reads]
