"""AdamW with its schedules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from drill.training.optim.optimizer import RunScheduled
from drill.training.optim.schedules import AnySchedule, inverse_sqrt_rate


@dataclass(eq=False, kw_only=True)
class AdamW(RunScheduled):
    """Adam with decoupled weight decay and a schedule over the whole run.

    Args:
        lr: the highest learning rate.
        weight_decay: of matrices.
        decoupled: False makes the decay part of the gradients, of all parameters: Adam with L2
            regularisation.
        schedule: "constant" after a linear warmup, "linear" or "cosine" to final * lr after it,
            "one-cycle", or "inverse-sqrt", which needs no length of the run: up to lr at step
            warmup_steps, from there on lr * sqrt(warmup_steps / step).
        warmup_steps: of "inverse-sqrt".
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of their squares; a short memory gives rare labels too little
            probability (docs/adam.md).
        eps: is added to the denominator.

    Other arguments are those of ``RunScheduled`` and ``ScheduledOptimizer``.
    """

    lr: float = field(default=1e-3, kw_only=False)
    weight_decay: float = 0.1
    decoupled: bool = True
    max_grad_norm: float | None = 1.0
    schedule: AnySchedule = "cosine"
    warmup: float = 0.05
    warmup_steps: int = 4000
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "one-cycle":
            self.check("warmup", self.warmup > 0.0, "above 0 for one-cycle")
        self.check("warmup_steps", self.warmup_steps >= 1, "at least 1")
        self.check("beta1", 0.0 <= self.beta1 < 1.0, "in [0, 1)")
        self.check("beta2", 0.0 <= self.beta2 < 1.0, "in [0, 1)")
        # 0 would make 0/0 of rows without gradients.
        self.check("eps", 0.0 < self.eps < math.inf, "a finite positive number")
        self.steps = 0

    def build(self) -> Optimizer:
        return self.adam(self.parameters)

    def adam(self, named: Mapping[str, nn.Parameter]) -> Optimizer:
        """The torch optimizer over some of the parameters."""
        matrices = {name: p for name, p in named.items() if p.dim() >= 2}
        vectors = {name: p for name, p in named.items() if p.dim() < 2}
        groups = self.groups(matrices) + self.groups(vectors, decays=not self.decoupled)
        device = next(iter(named.values())).device
        on_gpu = device.type == "cuda"
        if on_gpu:
            for group in groups:
                group["lr"] = torch.tensor(self.lr, dtype=torch.float32, device=device)
        optimizer_class = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return optimizer_class(
            groups,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=device.type in ("cpu", "cuda") or None,  # one pass where there would be ten
            capturable=on_gpu,
        )

    def rate(self, progress: float) -> float:
        if self.schedule == "inverse-sqrt":
            return inverse_sqrt_rate(self.steps, lr=self.lr, warmup_steps=self.warmup_steps)
        return super().rate(progress)

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        self.steps += 1
        super().prepare_step(sampled_length, bptt, progress)

    def apply_step(self) -> None:
        super().apply_step()
        increment_version(list(self.parameters.values()))  # fused steps write past torch's count

    def capture_blocker(self) -> str | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict(saved)
        self.steps = saved["steps"]
