"""Means of weights, and when they begin.

``AveragedSgd`` is an optimizer with the running mean of its iterates: the second phase of NT-ASGD
(Merity, Keskar & Socher, ICLR 2018), and finetuning. ``averaged`` puts that mean into the model.
``WeightAverage`` is the mean of the late iterates of any other optimizer, from the share
``optimizer.average_from`` of a run on. Where there is one of these two, it is what is validated and
saved as best.safetensors. ``training.average_checkpoints`` of a translator is another mean: at the
end that of the weights of the last validations is tried, and saved as averaged.safetensors if it is
better than the best.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from drill.errors import require


class AveragedSgd(Optimizer):
    """SGD that keeps the running mean of its iterates.

        w_n = w_{n-1} - r_n (g_n + weight_decay * w_{n-1})        r_1 = lr_1, r_n = lr_{n-1}
        a_n = mean(w_2, ..., w_n)                                 a_1 = w_1

    A step uses the learning rate that the step before was given, and the mean leaves out the first
    iterate: so does ``torch.optim.ASGD(t0=0, lambd=0)``, to which this is equal, and with which
    the published models were trained.

    For the second phase of NT-ASGD and for finetuning. Averages are read by ``averaged``.

    Args:
        params: as in any torch optimizer.
        lr: learning rate.
        weight_decay: of every parameter, biases too.
    """

    def __init__(self, params: ParamsT, lr: float, *, weight_decay: float = 0.0) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            wanted = "a finite number of at least 0"
            require(0.0 <= value < math.inf, "AveragedSgd", name, wanted, value)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (steps, rate), params in self._by_progress(group).items():
                grads = [p.grad for p in params if p.grad is not None]
                averages = [self.state[p]["average"] for p in params]
                if group["weight_decay"] != 0.0:
                    grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
                torch._foreach_add_(params, grads, alpha=-rate)
                if steps < 2:
                    torch._foreach_copy_(averages, params)
                else:
                    torch._foreach_lerp_(averages, params, 1.0 / steps)
                for p in params:
                    self.state[p].update(step=steps + 1, rate=float(group["lr"]))
        return loss

    def advance(self) -> list[tuple[float, float]]:
        """Count a step that a kernel takes, with all parameters, which are ``even``.

        Returns r_n and the share of w_n in a_n, for each parameter group.
        """
        rates_and_shares = []
        for group in self.param_groups:
            states = [self._state(p, group) for p in group["params"]]
            steps, rate = states[0]["step"], states[0]["rate"]
            for state in states:
                state.update(step=steps + 1, rate=float(group["lr"]))
            rates_and_shares.append((rate, 1.0 if steps < 2 else 1.0 / steps))
        return rates_and_shares

    def even(self) -> bool:
        """Whether all parameters of each group have taken the same steps."""
        for group in self.param_groups:
            states = [self.state.get(p, {}) for p in group["params"]]
            if len({(state.get("step", 0), state.get("rate")) for state in states}) != 1:
                return False
        return True

    def _state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter, made before its first step."""
        state = self.state[p]
        if not state:
            state.update(step=0, rate=float(group["lr"]), average=torch.zeros_like(p))
        return state

    def _by_progress(self, group: dict[str, Any]) -> dict[tuple[int, float], list[Tensor]]:
        """The parameters with gradients by steps done and rate, which are one set unless some were
        left out of a step."""
        sets: dict[tuple[int, float], list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self._state(p, group)
            sets.setdefault((state["step"], state["rate"]), []).append(p)
        return sets


@contextmanager
def averaged(optimizer: AveragedSgd) -> Iterator[None]:
    """Inside, every parameter has its average; afterwards its old value, bit for bit.

    For evaluating and saving the averaged model. A parameter that never had a gradient has no
    average and stays as it is.

    Args:
        optimizer: after its first step.

    Returns:
        A context manager.
    """
    params = [p for p in optimizer.state if "average" in optimizer.state[p]]
    if not params:
        raise RuntimeError("averaged: there is no average before the first step; call step() first")
    with replaced(params, [optimizer.state[p]["average"] for p in params]):
        yield


@contextmanager
def replaced(params: list[Tensor], values: list[Tensor]) -> Iterator[None]:
    """Inside, parameters have other values; after, those from before, bit for bit."""
    originals = [p.detach().clone() for p in params]
    # Values are copied, storages stay: cuDNN reads the weights of an LSTM from one buffer.
    with torch.no_grad():
        torch._foreach_copy_(params, values)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(params, originals)


class WeightAverage:
    """The mean of late weights: a_n <- a_{n-1} + (w_n - a_{n-1}) / n, from a_1 = w_1 on.

    Training continues from the iterates. ``begins`` is the share of the run before the first
    averaged iterate; after ``patience`` epochs without a better validation averaging starts
    earlier.
    """

    def __init__(self, begins: float, patience: int | None = None) -> None:
        name, share = "WeightAverage", "a share of the run in [0, 1) or none"
        require(0.0 <= begins < 1.0, name, "average_from", share, begins)
        waits = patience is None or patience >= 1
        require(waits, name, "average_patience", "at least 1 or none", patience)
        self.begins, self.patience = begins, patience
        self.best: float | None = None  # of the validations
        self.stale = 0  # epochs since then
        self.count = 0  # iterates so far
        self.params: list[Tensor] = []
        self.values: list[Tensor] = []

    def due(self, progress: float) -> bool:
        """Whether averaging starts when the share ``progress`` of the run is done."""
        return progress >= self.begins or (
            self.patience is not None and self.stale >= self.patience
        )

    def validated(self, loss: float) -> None:
        """Count an epoch with this validation loss."""
        better = self.best is None or loss < self.best
        self.best, self.stale = (loss, 0) if better else (self.best, self.stale + 1)

    @property
    def begun(self) -> bool:
        """Whether steps average from now on."""
        return bool(self.values)

    def begin(self, params: Sequence[Tensor]) -> None:
        """Allocate the average, before the next iterate."""
        self.params = list(params)
        self.values = [torch.zeros_like(p) for p in self.params]
        first = self.params[0]
        self._share = torch.ones((), dtype=first.dtype, device=first.device)
        self.add()  # a capture must not be the first launch of its kernels

    def prepare_step(self) -> None:
        """Count the next iterate and write its share where a captured ``add`` reads it."""
        self.count += 1
        self._share.fill_(self.share())

    def share(self) -> float:
        """The weight of the last iterate in the mean."""
        return 1.0 / self.count

    @torch.no_grad()
    def add(self) -> None:
        """Take the prepared iterate into the average."""
        for value, p in zip(self.values, self.params, strict=True):
            value.lerp_(p, self._share.to(p.dtype))

    def load(self, params: Sequence[Tensor], values: Sequence[Tensor], count: int) -> None:
        """Continue an average of ``count`` iterates."""
        self.begin(params)
        for value, saved in zip(self.values, values, strict=True):
            value.copy_(saved)
        self.count = count


class NonMonotonicTrigger:
    """Triggers once an epoch is worse than the best epoch before the last ``patience`` ones.

        loss_n > min(loss_1, ..., loss_{n-1-patience})

    Then SGD has stopped making progress: averaging should start, or finetuning end.

        if trigger.update(validation_loss):  # True once
            optimizer = AveragedSgd(model.parameters(), lr, weight_decay=1.2e-6)

    Args:
        patience: number of epochs before this one that are left out of the comparison.
    """

    def __init__(self, patience: int = 5) -> None:
        valid = type(patience) is int and patience >= 0
        require(valid, "NonMonotonicTrigger", "patience", "an integer of at least 0", patience)
        self.patience = patience
        self.history: list[float] = []
        self.triggered = False

    def update(self, loss: float) -> bool:
        """Add the loss of the next epoch; True for the one epoch that triggers."""
        loss = float(loss)
        if math.isnan(loss):
            raise ValueError("NonMonotonicTrigger: the loss is NaN, neither better nor worse")
        if self.triggered:
            return False
        older = self.history[: max(0, len(self.history) - self.patience)]
        self.triggered = bool(older) and loss > min(older)
        self.history.append(loss)
        return self.triggered

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {**vars(self), "history": list(self.history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.patience, self.triggered = state["patience"], state["triggered"]
        self.history = list(state["history"])
