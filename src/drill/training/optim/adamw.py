"""AdamW with its schedules."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from drill.errors import check_value
from drill.training.optim.averaging import AverageKind, late_average
from drill.training.optim.optimizer import ScheduledOptimizer
from drill.training.optim.schedules import (
    RESOLUTION,
    check_schedule,
    inverse_sqrt,
    one_cycle,
    run_rate,
    step_of_run,
)

Schedule = Literal["constant", "linear", "cosine", "one-cycle", "inverse-sqrt"]


class AdamW(ScheduledOptimizer):
    """Adam with decoupled weight decay and a schedule over the whole run.

    Args:
        lr: the highest learning rate.
        weight_decay: of matrices.
        decoupled: False makes the decay part of the gradients, of all parameters: Adam with L2
            regularisation.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        schedule: "constant" after a linear warmup, "linear" or "cosine" to final * lr after it,
            "one-cycle", or "inverse-sqrt", which needs no length of the run: up to lr at step
            warmup_steps, from there on lr * sqrt(warmup_steps / step).
        warmup: share of the run in which the rate rises.
        warmup_steps: of "inverse-sqrt".
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of their squares.
        eps: is added to the denominator.
        hold: share of the run at lr before a linear or cosine decay.
        final: share of lr at the end of such a decay.
        average_from: share of the run from which weights are averaged; None averages nothing.
        average: "tail", the mean of all iterates from there on, or "ema".
        ema_decay: of "ema", for each step.
        average_patience: averaging also starts after so many epochs without a better validation.
        map_lr_scale: factor of the learning rate of label maps.
        map_weight_decay: of label maps; None is ``weight_decay``.
        map_warmup: share of the run in which the rate of label maps rises.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.1,
        decoupled: bool = True,
        max_grad_norm: float | None = 1.0,
        schedule: Schedule = "cosine",
        warmup: float = 0.05,
        warmup_steps: int = 4000,
        beta1: float = 0.9,
        beta2: float = 0.99,
        eps: float = 1e-8,
        hold: float = 0.0,
        final: float = 0.0,
        average_from: float | None = None,
        average: AverageKind = "tail",
        ema_decay: float = 0.999,
        average_patience: int | None = None,
        map_lr_scale: float = 1.0,
        map_weight_decay: float | None = None,
        map_warmup: float = 0.0,
    ) -> None:
        maps = (map_lr_scale, map_weight_decay, map_warmup)
        super().__init__(lr, weight_decay, max_grad_norm, *maps)
        name = type(self).__name__
        shape = {"warmup": warmup, "hold": hold, "final": final}
        check_schedule(name, schedule, get_args(Schedule), **shape)
        if schedule == "one-cycle":
            check_value(warmup > 0.0, f"{name}: warmup", "above 0 for one-cycle", warmup)
        check_value(warmup_steps >= 1, f"{name}: warmup_steps", "at least 1", warmup_steps)
        for key, beta in (("beta1", beta1), ("beta2", beta2)):
            check_value(0.0 <= beta < 1.0, f"{name}: {key}", "in [0, 1)", beta)
        # 0 would make 0/0 of rows without gradients.
        check_value(0.0 < eps < math.inf, f"{name}: eps", "a finite positive number", eps)
        self.schedule: Schedule = schedule
        self.shape, self.warmup_steps = shape, warmup_steps
        self.steps = 0
        self.betas = (beta1, beta2)
        self.eps = eps
        self.decoupled = decoupled
        self.average = late_average(average_from, average, ema_decay, average_patience)

    def build(self) -> Optimizer:
        matrices = {name: p for name, p in self.parameters.items() if p.dim() >= 2}
        vectors = {name: p for name, p in self.parameters.items() if p.dim() < 2}
        groups = self.groups(matrices) + self.groups(vectors, decays=not self.decoupled)
        place = next(iter(self.parameters.values())).device
        on_gpu = place.type == "cuda"
        if on_gpu:
            for group in groups:
                group["lr"] = torch.tensor(self.lr, dtype=torch.float32, device=place)
        kind = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return kind(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=place.type in ("cpu", "cuda") or None,  # one pass where there would be ten
            capturable=on_gpu,
        )

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        self.steps += 1
        super().prepare_step(sampled_length, bptt, progress)

    def apply_step(self) -> None:
        super().apply_step()
        increment_version(list(self.parameters.values()))  # fused steps write past torch's count

    def capture_blocker(self) -> str | None:
        return None

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "steps": self.steps}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        super().load(tensors, numbers)
        self.steps = numbers["steps"]

    def rate(self, progress: float) -> float:
        if self.schedule == "inverse-sqrt":
            peak = inverse_sqrt(self.warmup_steps, width=1, warmup=self.warmup_steps)
            now = inverse_sqrt(max(1, self.steps), width=1, warmup=self.warmup_steps)
            return self.lr * now / peak
        if self.schedule == "one-cycle":
            step, rise = step_of_run(progress), self.shape["warmup"]
            return one_cycle(step, peak=self.lr, total=RESOLUTION, rise=rise)
        return run_rate(progress, lr=self.lr, schedule=self.schedule, **self.shape)
