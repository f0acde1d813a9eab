"""SGD: plain, averaged, and first one, then the other.

On a GPU a whole step, with clipping and averaging, is two launches (``kernels/optimizer``).
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from drill.errors import check_value
from drill.kernels.optimizer import sgd_step
from drill.training.optim.averaging import AveragedSgd, AverageKind, NonMonotone, late_average
from drill.training.optim.optimizer import ScheduledOptimizer
from drill.training.optim.schedules import RunSchedule, check_schedule, run_rate

logger = logging.getLogger("drill")


class FusedSgd(ScheduledOptimizer):
    """What plain and averaged SGD share: on a GPU all of a step is two launches."""

    _fused = False
    _obstacle: str | None = None

    def setup(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        super().setup(named)
        trained = list(self.parameters.values())
        self._obstacle = sgd_step.supported(trained)
        self._fused = self._obstacle is None
        groups = len(self._begun().param_groups)
        # Of each group: rate and share of the average.
        self._numbers = torch.zeros((groups, 2), dtype=torch.float32, device=trained[0].device)
        if trained[0].is_cuda and not self._fused:
            logger.info("SGD: torch's optimizer instead of one pass: %s", self._obstacle)

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        before, self._fused = self._fused, self._fused and self.replay_blocker() is None
        super().step(sampled_length, bptt, progress)
        self._fused = before

    def replay_blocker(self) -> str | None:
        without = [name for name, p in self.parameters.items() if p.grad is None]
        if without:
            return f"{without[0]} has no gradient"
        optimizer = self._begun()
        if isinstance(optimizer, AveragedSgd) and not optimizer.even():
            return "some parameters were left out of an earlier step"
        return None

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        super().prepare_step(sampled_length, bptt, progress)
        if not self._fused:
            return
        optimizer = self._begun()
        if isinstance(optimizer, AveragedSgd):
            numbers = optimizer.advance()
        else:
            late = self.average
            share = late.share() if late is not None and late.begun else 0.0
            numbers = [(group["lr"], share) for group in optimizer.param_groups]
        for own, (rate, share) in zip(self._numbers, numbers, strict=True):
            own[0].fill_(rate)
            own[1].fill_(share)

    def apply_step(self) -> None:
        if not self._fused:
            super().apply_step()
            return
        optimizer = self._begun()
        averages: dict[Tensor, Tensor] = {}
        if isinstance(optimizer, AveragedSgd):
            averages = {p: state["average"] for p, state in optimizer.state.items()}
        elif self.average is not None and self.average.begun:
            averages = dict(zip(self.average.params, self.average.values, strict=True))
        groups = [
            sgd_step.Group(
                group["params"],
                [p.grad for p in group["params"] if p.grad is not None],
                [averages[p] for p in group["params"]] if averages else None,
                numbers,
                group["weight_decay"],
            )
            for group, numbers in zip(optimizer.param_groups, self._numbers, strict=True)
        ]
        sgd_step.sgd_step(groups, clip=self.max_grad_norm)
        optimizer.zero_grad(set_to_none=True)

    def capture_blocker(self) -> str | None:
        return self._obstacle


class Sgd(FusedSgd):
    """w <- w - lr (g + weight_decay w), g clipped; with a schedule and an average of late weights.

    Averages are validated and saved as best; training continues from the iterates. Once begun,
    averaging does not end, even if the run is given more time.

    Args:
        lr: learning rate, scaled for each step by its sampled length over bptt.
        weight_decay: of every parameter.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        schedule: "constant", or "linear" or "cosine" down to final * lr at the end of the run.
        warmup: share of the run in which the rate rises linearly to lr.
        hold: share of the run at lr before it decays.
        final: share of lr at the end of the run.
        lr_decay: after ``lr_decay_after`` epochs the rate of each is divided by it once more.
        lr_decay_after: epochs.
        average_from: share of the run from which weights are averaged; None averages nothing.
        average: "tail", the mean of all iterates from there on, or "ema".
        ema_decay: of "ema", for each step.
        map_lr_scale: factor of the learning rate of label maps.
        map_weight_decay: of label maps; None is ``weight_decay``.
        map_warmup: share of the run in which the rate of label maps rises.
    """

    def __init__(
        self,
        lr: float = 30.0,
        *,
        weight_decay: float = 1.2e-6,
        max_grad_norm: float | None = 0.25,
        schedule: RunSchedule = "constant",
        warmup: float = 0.0,
        hold: float = 0.0,
        final: float = 0.0,
        lr_decay: float = 1.0,
        lr_decay_after: int = 0,
        average_from: float | None = None,
        average: AverageKind = "tail",
        ema_decay: float = 0.999,
        map_lr_scale: float = 1.0,
        map_weight_decay: float | None = None,
        map_warmup: float = 0.0,
    ) -> None:
        maps = (map_lr_scale, map_weight_decay, map_warmup)
        super().__init__(lr, weight_decay, max_grad_norm, *maps)
        self.schedule: RunSchedule = schedule
        self.shape = {"warmup": warmup, "hold": hold, "final": final}
        check_schedule("Sgd", schedule, get_args(RunSchedule), **self.shape)
        check_value(lr_decay >= 1.0, "Sgd: lr_decay", "at least 1", lr_decay)
        check_value(lr_decay_after >= 0, "Sgd: lr_decay_after", "at least 0", lr_decay_after)
        self.lr_decay, self.lr_decay_after = lr_decay, lr_decay_after
        self.epochs = 0  # done
        self.average = late_average(average_from, average, ema_decay)

    def rate(self, progress: float) -> float:
        lr = self.lr / self.lr_decay ** max(0, self.epochs + 1 - self.lr_decay_after)
        return run_rate(progress, lr=lr, schedule=self.schedule, **self.shape)

    def epoch_ended(self, valid_loss: float) -> None:
        super().epoch_ended(valid_loss)
        self.epochs += 1

    def numbers(self) -> dict[str, Any]:
        counted = {"epochs": self.epochs} if self.lr_decay > 1.0 else {}
        return {**super().numbers(), **counted}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        super().load(tensors, numbers)
        self.epochs = numbers.get("epochs", 0)

    def build(self) -> Optimizer:
        return torch.optim.SGD(self.groups(self.parameters), lr=self.lr)


class Asgd(FusedSgd):
    """Averaged SGD from the first step on; for finetuning a trained model.

    Args:
        lr: learning rate, scaled for each step by its sampled length over bptt.
        weight_decay: of every parameter.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        map_lr_scale: factor of the learning rate of label maps.
        map_weight_decay: of label maps; None is ``weight_decay``.
        map_warmup: share of the run in which the rate of label maps rises.
    """

    def __init__(
        self,
        lr: float = 30.0,
        *,
        weight_decay: float = 1.2e-6,
        max_grad_norm: float | None = 0.25,
        map_lr_scale: float = 1.0,
        map_weight_decay: float | None = None,
        map_warmup: float = 0.0,
    ) -> None:
        maps = (map_lr_scale, map_weight_decay, map_warmup)
        super().__init__(lr, weight_decay, max_grad_norm, *maps)

    def build(self) -> Optimizer:
        return AveragedSgd(self.groups(self.parameters), self.lr)


class NtAsgd(FusedSgd):
    """SGD until validation stops to improve, averaged SGD from then on; for AWD-LSTM language
    models.

    The switch comes after the epoch that is worse than the best one before the last ``patience``
    (``NonMonotone``). It is never taken back.

    Args:
        lr: learning rate, scaled for each step by its sampled length over bptt.
        weight_decay: of every parameter.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        patience: epochs.
        map_lr_scale: factor of the learning rate of label maps.
        map_weight_decay: of label maps; None is ``weight_decay``.
        map_warmup: share of the run in which the rate of label maps rises.
    """

    def __init__(
        self,
        lr: float = 30.0,
        *,
        weight_decay: float = 1.2e-6,
        max_grad_norm: float | None = 0.25,
        patience: int = 5,
        map_lr_scale: float = 1.0,
        map_weight_decay: float | None = None,
        map_warmup: float = 0.0,
    ) -> None:
        maps = (map_lr_scale, map_weight_decay, map_warmup)
        super().__init__(lr, weight_decay, max_grad_norm, *maps)
        self.trigger = NonMonotone(patience)

    def build(self) -> Optimizer:
        return torch.optim.SGD(self.groups(self.parameters), lr=self.lr)

    def epoch_ended(self, valid_loss: float) -> None:
        if self.trigger.update(valid_loss):
            self._average()

    def _average(self) -> None:
        self.optimizer = AveragedSgd(self.groups(self.parameters), self.lr)

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "trigger": self.trigger.state_dict()}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self.trigger.load_state_dict(numbers["trigger"])
        if self.trigger.triggered:
            self._average()
        super().load(tensors, numbers)
