"""Optimisation of language models: averaged SGD, the rule that starts it, clipping, schedules.

NT-ASGD (Merity, Keskar & Socher, ICLR 2018) is SGD until ``NonMonotone`` triggers, then
``AveragedSgd``; epochs are evaluated inside ``averaged(optimizer)``.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT


class AveragedSgd(Optimizer):
    """SGD that keeps the running mean of its iterates.

        w_n = w_{n-1} - r_n (g_n + weight_decay * w_{n-1})        r_1 = lr_1, r_n = lr_{n-1}
        a_n = mean(w_2, ..., w_n)                                 a_1 = w_1

    A step uses the learning rate that the step before was given, and the mean leaves out the first
    iterate: so does ``torch.optim.ASGD(t0=0, lambd=0)``, to which this is equal, and with which
    the published models were trained. Weight decay falls on every parameter, biases too.

    For the second phase of NT-ASGD and for finetuning. Averages are read by ``averaged``.
    """

    def __init__(self, params: ParamsT, lr: float, *, weight_decay: float = 0.0) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not (value >= 0.0 and math.isfinite(value)):
                raise ValueError(
                    f"AveragedSgd: {name} is a finite number of at least 0, not {value}"
                )
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Any) -> float: ...

    @torch.no_grad()
    def step(self, closure: Any = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (done, rate), params in self._by_progress(group).items():
                grads = [p.grad for p in params if p.grad is not None]
                averages = [self.state[p]["average"] for p in params]
                if group["weight_decay"] != 0.0:
                    grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
                torch._foreach_add_(params, grads, alpha=-rate)
                if done < 2:
                    torch._foreach_copy_(averages, params)
                else:
                    torch._foreach_lerp_(averages, params, 1.0 / done)
                for p in params:
                    self.state[p].update(step=done + 1, rate=float(group["lr"]))
        return loss

    def _by_progress(self, group: dict[str, Any]) -> dict[tuple[int, float], list[Tensor]]:
        """The parameters with gradients by steps done and rate, which are one set unless some were
        left out of a step."""
        sets: dict[tuple[int, float], list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise TypeError(
                    "AveragedSgd: a gradient is sparse; build the embedding with sparse=False"
                )
            state = self.state[p]
            if not state:
                state.update(step=0, rate=float(group["lr"]), average=torch.zeros_like(p))
            sets.setdefault((state["step"], state["rate"]), []).append(p)
        return sets


@contextmanager
def averaged(optimizer: AveragedSgd) -> Iterator[None]:
    """Inside, every parameter holds its average; after, what it held before, bit for bit.

    For evaluating and saving: what is saved inside is the averaged model, training goes on from
    the iterates. A parameter that never had a gradient has no average and stays as it is.
    """
    params = [p for p in optimizer.state if "average" in optimizer.state[p]]
    if not params:
        raise RuntimeError("averaged: there is no average before the first step; call step() first")
    held = [p.detach().clone() for p in params]
    # Values are copied, storages stay: cuDNN reads the weights of an LSTM from one buffer.
    with torch.no_grad():
        torch._foreach_copy_(params, [optimizer.state[p]["average"] for p in params])
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(params, held)


class NonMonotoneState(TypedDict):
    patience: int
    history: list[float]
    triggered: bool


class NonMonotone:
    """Triggers once an epoch is worse than the best epoch before the last ``patience`` ones.

        loss_n > min(loss_1, ..., loss_{n-1-patience})

    Tells when SGD has stopped to make progress and averaging should start, and when finetuning
    should end. Never takes it back.

        if trigger.update(validation_loss):  # True once
            optimizer = AveragedSgd(model.parameters(), lr, weight_decay=1.2e-6)
    """

    def __init__(self, patience: int = 5) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise ValueError(
                f"NonMonotone: patience is a whole number of at least 0, not {patience!r}"
            )
        self.patience = patience
        self.history: list[float] = []
        self.triggered = False

    def update(self, loss: float) -> bool:
        """Tell the loss of the next epoch; True for the one epoch that triggers."""
        loss = float(loss)
        if math.isnan(loss):
            raise ValueError("NonMonotone: the loss is NaN, which is neither better nor worse")
        if self.triggered:
            return False
        older = self.history[: max(0, len(self.history) - self.patience)]
        self.triggered = bool(older) and loss > min(older)
        self.history.append(loss)
        return self.triggered

    def state_dict(self) -> NonMonotoneState:
        """Plain numbers, ready for JSON."""
        return {
            "patience": self.patience,
            "history": list(self.history),
            "triggered": self.triggered,
        }

    def load_state_dict(self, state: NonMonotoneState) -> None:
        self.patience = state["patience"]
        self.history = list(state["history"])
        self.triggered = state["triggered"]


def clip_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """g <- g * min(1, max_norm / |g|), |g| the norm over all gradients together; gives |g|.

    In place and without waiting for the device. A parameter given twice, as by an encoder and a
    layer that share their embedding, counts once.
    """
    if not max_norm > 0.0:
        raise ValueError(f"clip_: max_norm is a positive number, not {max_norm}")
    once = list(dict.fromkeys(parameters))
    return nn.utils.clip_grad_norm_(once, max_norm)


def scaled_lr(lr: float, sampled_length: int, bptt: int) -> float:
    """lr * sampled_length / bptt: a step over a longer batch is longer.

    ``sampled_length`` is what was drawn, even where the end of the corpus cuts the batch.
    """
    if sampled_length < 1 or bptt < 1:
        raise ValueError(
            f"scaled_lr: lengths are at least 1, not sampled_length {sampled_length}, bptt {bptt}"
        )
    return lr * sampled_length / bptt


# -- schedules: the learning rate of step 1, 2, ..., nothing remembered ---------------------------


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
