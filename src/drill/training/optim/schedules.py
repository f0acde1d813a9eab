"""Learning rates of step 1, 2, ...: pure functions, nothing remembered."""

import math


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
