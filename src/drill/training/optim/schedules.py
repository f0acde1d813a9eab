"""Learning-rate schedules as pure functions."""

import math
from typing import Literal

RunSchedule = Literal["constant", "linear", "cosine"]
AnySchedule = Literal[RunSchedule, "one-cycle", "inverse-sqrt"]
SHARE_OF_RUN = "a share of the run in [0, 1)"
RESOLUTION = 1_000_000  # steps that a schedule divides a run into: its own are not known


def run_rate(
    progress: float,
    *,
    lr: float,
    schedule: Literal[RunSchedule, "one-cycle"],
    warmup: float = 0.0,
    hold: float = 0.0,
    final: float = 0.0,
) -> float:
    """A schedule over a run: up, flat, then down along a line or half a cosine.

    A trapezoid is "linear" with ``hold``.

    Args:
        progress: share of the run that is done.
        lr: the highest rate.
        schedule: "linear" or "cosine"; "constant" stays at lr; "one-cycle" as ``OneCycleLR`` of
            torch: half a cosine from lr / 25 up, another one down to lr / 250,000.
        warmup: share of the run in which the rate rises, linearly from 0 to lr but for "one-cycle".
        hold: share of the run at lr, of "linear" and "cosine".
        final: share of lr at the end of the run, of "linear" and "cosine".

    Returns:
        The learning rate.
    """
    at = 1 + int(min(max(progress, 0.0), 1.0) * (RESOLUTION - 1))  # 1 to RESOLUTION
    rising = int(warmup * RESOLUTION)
    if schedule == "constant":
        return lr * min(1.0, at / max(1, rising))
    if schedule == "one-cycle":
        top, last, start = warmup * RESOLUTION - 1.0, RESOLUTION - 1.0, lr / 25.0
        if at - 1 < top:
            return _cosine(start, lr, (at - 1) / top)
        return _cosine(lr, start / 1e4, (at - 1 - top) / (last - top))
    if at < rising:
        return lr * at / rising
    begins = rising + int(hold * RESOLUTION)
    share = max(0.0, (at - begins) / (RESOLUTION - begins))
    if schedule == "cosine":
        return _cosine(lr, final * lr, share)
    return lr * (1.0 - share) + final * lr * share


def inverse_sqrt_rate(steps: int, *, lr: float, warmup_steps: int) -> float:
    """Linear up to lr at step ``warmup_steps``, then step^-0.5 ("noam"); the run has no length."""
    rate, peak = (min(n**-0.5, n * warmup_steps**-1.5) for n in (max(1, steps), warmup_steps))
    return lr * rate / peak


def _cosine(start: float, end: float, share: float) -> float:
    weight = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))  # exactly 1 and 0 at the ends
    return start * weight + end * (1.0 - weight)
