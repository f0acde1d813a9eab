"""Learning rates of step 1, 2, ...: pure functions, nothing remembered."""

import math
from typing import Literal

RunSchedule = Literal["constant", "linear", "cosine"]
RESOLUTION = 1_000_000  # into so many steps a schedule divides a run, whose own are not known


def check_run_schedule(
    name: str, schedule: str, *, warmup: float, hold: float, final: float
) -> None:
    """Refuse settings that ``run_rate`` cannot use; ``name`` is the optimizer that has them."""
    if not 0.0 <= warmup < 1.0:  # NaN fails too
        raise ValueError(f"{name}: warmup is a share of the run in [0, 1), not {warmup}")
    if not 0.0 <= hold < 1.0 or warmup + hold >= 1.0:
        raise ValueError(
            f"{name}: hold is a share of the run in [0, 1) that leaves time to decay after "
            f"warmup {warmup}, not {hold}"
        )
    if not 0.0 <= final <= 1.0:
        raise ValueError(f"{name}: final is a share of lr in [0, 1], not {final}")
    if schedule not in ("linear", "cosine"):
        for key, value in (("hold", hold), ("final", final)):
            if value != 0.0:
                raise ValueError(
                    f"{name}: {key} belongs to schedule linear or cosine, not to {schedule}; "
                    f"leave {key} out or choose one of them"
                )


def run_rate(
    progress: float,
    *,
    lr: float,
    schedule: RunSchedule,
    warmup: float = 0.0,
    hold: float = 0.0,
    final: float = 0.0,
) -> float:
    """The rate when the share ``progress`` of a run is done.

    Linear from 0 to ``lr`` for the share ``warmup`` of the run, ``lr`` for the share ``hold``, then
    down to final * lr at the end of the run: along a line or half a cosine. ``constant`` stays at
    ``lr``. A trapezoid is ``linear`` with ``hold``.
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
    """Which of RESOLUTION steps, from 1, has come when the share ``progress`` of a run is done."""
    return 1 + int(min(max(progress, 0.0), 1.0) * (RESOLUTION - 1))


def warmup_cosine(step: int, *, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """Linear to ``peak`` at step ``warmup``, then half a cosine to ``floor`` at step ``total``.

    For transformers of a known training length.
    """
    _check_step("warmup_cosine", step)
    if not 0 <= warmup < total:
        raise ValueError(
            f"warmup_cosine: warmup {warmup} lies in [0, total) and total is {total}; "
            "warm up for fewer steps"
        )
    if step < warmup:
        return peak * step / warmup
    return _cosine(peak, floor, (step - warmup) / (total - warmup))


def one_cycle(
    step: int,
    *,
    peak: float,
    total: int,
    rise: float = 0.3,
    start_factor: float = 25.0,
    end_factor: float = 1e4,
) -> float:
    """Half a cosine from peak / start_factor up to peak, another down to start / end_factor.

    The first ``rise`` of the ``total`` steps goes up. For short trainings at high rates; the same
    numbers as ``torch.optim.lr_scheduler.OneCycleLR``.
    """
    _check_step("one_cycle", step)
    top = rise * total - 1.0  # counted from 0, as the scheduler counts
    if not 0.0 < top < total - 1.0:
        raise ValueError(
            f"one_cycle: rise {rise} of {total} steps leaves no way up or no way down; "
            "take more steps or a rise nearer to 0.3"
        )
    start = peak / start_factor
    at = step - 1
    if at <= top:
        return _cosine(start, peak, at / top)
    return _cosine(peak, start / end_factor, (at - top) / (total - 1.0 - top))


def inverse_sqrt(step: int, *, width: int, warmup: int, scale: float = 1.0) -> float:
    """scale * width^-0.5 * min(step^-0.5, step * warmup^-1.5), highest at step ``warmup``.

    The schedule of the first transformers ("noam"); needs no training length.
    """
    _check_step("inverse_sqrt", step)
    if warmup < 1 or width < 1:
        raise ValueError(f"inverse_sqrt: warmup and width are at least 1, not {warmup} and {width}")
    return scale * width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def _cosine(start: float, end: float, share: float) -> float:
    weight = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))  # exactly 1 and 0 at the ends
    return start * weight + end * (1.0 - weight)


def _check_step(name: str, step: int) -> None:
    if step < 1:
        raise ValueError(f"{name}: steps count from 1, not {step}; the first step is 1")
