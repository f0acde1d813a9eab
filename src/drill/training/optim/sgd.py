"""SGD: plain, averaged, and first one, then the other.

On a GPU a whole step of a group of parameters, with clipping and averaging, is two launches
(``kernels/optimizer``).
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from drill.kernels.optimizer import sgd_step
from drill.training.optim.averaging import AveragedSgd, NonMonotonicTrigger
from drill.training.optim.optimizer import RunScheduled, ScheduledOptimizer
from drill.training.optim.schedules import RunSchedule

logger = logging.getLogger("drill")


@dataclass(eq=False, kw_only=True)
class FusedSgd(ScheduledOptimizer):
    """What plain and averaged SGD share: on a GPU all of a step is two launches."""

    lr: float = field(default=30.0, kw_only=False)
    weight_decay: float = 1.2e-6
    max_grad_norm: float | None = 0.25

    _fused: bool = field(default=False, init=False, repr=False)
    _blocker: str | None = field(default=None, init=False, repr=False)

    def build(self) -> Optimizer:
        return torch.optim.SGD(self.groups(self.parameters), lr=self.lr)

    def setup(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        super().setup(named)
        trained = list(self.parameters.values())
        self._blocker = sgd_step.unsupported_reason(trained)
        self._fused = self._blocker is None
        groups = len(self.optimizer.param_groups)
        # Of each group: rate and share of the average.
        self._lr_and_share = torch.zeros((groups, 2), dtype=torch.float32, device=trained[0].device)
        if trained[0].is_cuda and not self._fused:
            logger.info("SGD: torch's optimizer instead of one pass: %s", self._blocker)

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        fused, self._fused = self._fused, self._fused and self.replay_blocker() is None
        super().step(sampled_length, bptt, progress)
        self._fused = fused

    def replay_blocker(self) -> str | None:
        without = [name for name, p in self.parameters.items() if p.grad is None]
        if without:
            return f"{without[0]} has no gradient"
        if isinstance(self.optimizer, AveragedSgd) and not self.optimizer.even():
            return "some parameters were left out of an earlier step"
        return None

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        super().prepare_step(sampled_length, bptt, progress)
        if not self._fused:
            return
        if isinstance(self.optimizer, AveragedSgd):
            rates_and_shares = self.optimizer.advance()
        else:
            share = 0.0 if self._late is None else self._late.share()
            rates_and_shares = [(group["lr"], share) for group in self.optimizer.param_groups]
        for row, (rate, share) in zip(self._lr_and_share, rates_and_shares, strict=True):
            row[0].fill_(rate)
            row[1].fill_(share)

    def apply_step(self) -> None:
        if not self._fused:
            super().apply_step()
            return
        optimizer, averages = self.optimizer, self.averages()
        groups = [
            sgd_step.Group(
                group["params"],
                [p.grad for p in group["params"] if p.grad is not None],
                [averages[p] for p in group["params"]] if averages else None,
                lr_and_share,
                group["weight_decay"],
            )
            for group, lr_and_share in zip(optimizer.param_groups, self._lr_and_share, strict=True)
        ]
        for group in groups:  # label maps with a rate of their own are clipped by themselves
            sgd_step.sgd_step([group], clip=self.max_grad_norm)
        optimizer.zero_grad(set_to_none=True)

    def capture_blocker(self) -> str | None:
        return self._blocker


@dataclass(eq=False, kw_only=True)
class Sgd(FusedSgd, RunScheduled):
    """w <- w - lr (g + weight_decay w), g clipped; with a schedule and an average of late weights.

    Args:
        lr_decay_after: epochs at the full rate.
        lr_decay: from then on each epoch divides the rate by it once more.

    Other arguments are those of ``RunScheduled`` and ``ScheduledOptimizer``.
    """

    schedule: RunSchedule = "constant"
    lr_decay: float = 1.0
    lr_decay_after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lr_decay", self.lr_decay >= 1.0, "at least 1")
        self.check("lr_decay_after", self.lr_decay_after >= 0, "at least 0")
        self.epochs = 0  # done

    def rate(self, progress: float) -> float:
        lr = self.lr / self.lr_decay ** max(0, self.epochs + 1 - self.lr_decay_after)
        return self.scheduled(lr, progress)

    def epoch_ended(self, valid_loss: float) -> None:
        super().epoch_ended(valid_loss)
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        counted = {"epochs": self.epochs} if self.lr_decay > 1.0 else {}
        return {**super().state_dict(), **counted}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict(saved)
        self.epochs = saved.get("epochs", 0)


@dataclass(eq=False, kw_only=True)
class Asgd(FusedSgd):
    """Averaged SGD from the first step on; for finetuning a trained model.

    The arguments are those of ``ScheduledOptimizer``.
    """

    def build(self) -> Optimizer:
        return AveragedSgd(self.groups(self.parameters), self.lr)


@dataclass(eq=False, kw_only=True)
class NtAsgd(FusedSgd):
    """SGD until validation stops improving, averaged SGD from then on; for AWD-LSTM language
    models.

    The switch comes after the epoch that is worse than the best one before the last ``patience``
    (``NonMonotonicTrigger``). It is never taken back.

    Args:
        patience: of ``NonMonotonicTrigger``, in epochs.

    Other arguments are those of ``ScheduledOptimizer``.
    """

    patience: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trigger = NonMonotonicTrigger(self.patience)

    def epoch_ended(self, valid_loss: float) -> None:
        if self.trigger.update(valid_loss):
            self._average()

    def _average(self) -> None:
        self.optimizer = AveragedSgd(self.groups(self.parameters), self.lr)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "trigger": self.trigger.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.trigger.load_state_dict(saved["trigger"])
        if self.trigger.triggered:
            self._average()
        super().load_state_dict(saved)
