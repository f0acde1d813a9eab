"""Learning-rate schedules as pure functions, and ``SCHEDULES``, all of them by name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from drill.errors import require

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


def one_cycle(step: int, *, peak: float, total: int, rise: float = 0.3) -> float:
    """Half a cosine from start = peak / 25 up to peak, another one down to start / 10,000.

    For short trainings at high rates; the same numbers as ``torch.optim.lr_scheduler.OneCycleLR``.

    Args:
        step: from 1 to ``total``.
        peak: the highest rate.
        total: number of steps.
        rise: share of the steps that goes up.

    Returns:
        The learning rate.
    """
    require(step >= 1, "one_cycle", "step", "at least 1", step)
    top = rise * total - 1.0  # counted from 0, as the scheduler counts
    if not 0.0 < top < total - 1.0:
        raise ValueError(
            f"one_cycle: rise {rise} of {total} steps leaves no way up or no way down; "
            "take more steps or a rise nearer to 0.3"
        )
    start = peak / 25.0
    at = step - 1
    if at <= top:
        return _cosine(start, peak, at / top)
    return _cosine(peak, start / 1e4, (at - top) / (total - 1.0 - top))


def inverse_sqrt(step: int, *, width: int, warmup: int, scale: float = 1.0) -> float:
    """scale * width^-0.5 * min(step^-0.5, step * warmup^-1.5), highest at step ``warmup``.

    The schedule of the first transformers ("noam"); needs no training length.

    Args:
        step: from 1 on.
        width: of the model.
        warmup: steps.
        scale: a factor.

    Returns:
        The learning rate.
    """
    for name, value in (("step", step), ("warmup", warmup), ("width", width)):
        require(value >= 1, "inverse_sqrt", name, "at least 1", value)
    return scale * width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def _cosine(start: float, end: float, share: float) -> float:
    weight = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))  # exactly 1 and 0 at the ends
    return start * weight + end * (1.0 - weight)


def _one_cycle(progress: float, *, lr: float, warmup: float) -> float:
    return one_cycle(step_of_run(progress), peak=lr, total=RESOLUTION, rise=warmup)


def _inverse_sqrt(progress: float, *, lr: float, warmup_steps: int, steps: int) -> float:
    peak = inverse_sqrt(warmup_steps, width=1, warmup=warmup_steps)
    return lr * inverse_sqrt(max(1, steps), width=1, warmup=warmup_steps) / peak


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
