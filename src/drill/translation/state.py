"""The training state of a translator: adds recent weights, for averaging, to the common state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drill.training.distributed import World
from drill.training.optim import ScheduledOptimizer
from drill.training.run import checkpoint
from drill.training.run.checkpoint import copied
from drill.training.run.folder import RunFolder
from drill.training.state import Score, TrainingState
from drill.translation.evaluate import TranslationLoss


@dataclass(kw_only=True)
class TranslationState(TrainingState):
    """The next step starts at batch ``position`` of the ``epoch_size`` of this process.

    ``nll`` sums the losses of target tokens, times the number of processes.
    """

    score: ClassVar[type] = TranslationLoss
    saved: ClassVar[tuple[str, ...]] = (*TrainingState.saved, "validations")

    average: int = 1  # how many validations ``recent`` is of
    validations: int = 0
    recent: dict[int, dict[str, Tensor] | None] = field(default_factory=dict)
    """Weights of the last validations by step, None once they are on disk."""

    def loss_terms(self) -> int:
        return self.tokens

    def update_best(self, score: Score, model: nn.Module, world: World) -> bool:
        """Also copy the weights for the average, unless they are the initial ones."""
        if self.step > 0:
            self.validations += 1
            if self.average > 1:
                self.recent[self.step] = copied(model)
                for old in sorted(self.recent)[: -self.average]:
                    del self.recent[old]
        return super().update_best(score, model, world)

    def state_dict(self, world: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state_dict(world)
        return tensors, numbers | {
            "position": self.position * world.size,
            "recent": list(self.recent),
        }

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], world: World
    ) -> None:
        super().load_state_dict(tensors, numbers, world)
        # A step is a multiple of all processes, so only an epoch's last turn is rounded.
        self.position = min(self.epoch_size, -(-numbers["position"] // world.size))
        self.recent = dict.fromkeys(numbers["recent"])

    def save(
        self, model: nn.Module, optimizer: ScheduledOptimizer, run: RunFolder, world: World
    ) -> None:
        """Also write the recent weights, and remove those that no checkpoint knows any more."""
        for step, weights in self.recent.items():
            if weights is not None and world.is_main:
                checkpoint.save(run.recent(step), weights, {"step": step})
        self.recent = dict.fromkeys(self.recent)
        super().save(model, optimizer, run, world)
        if world.is_main:
            run.forget_recent(self.recent)

    def weight_files(self, run: RunFolder) -> list[Path]:
        return [*super().weight_files(run), *map(run.recent, self.recent)]

    @torch.no_grad()
    def average_recent(self, run: RunFolder) -> dict[str, Tensor]:
        """The mean of the recent weights, all of which are on disk."""
        fix = f"restore it from a copy, or remove {run.last} to start over"
        total: dict[str, Tensor] = {}
        for step in sorted(self.recent):
            weights, _ = checkpoint.load(run.recent(step), fix)
            for name, tensor in weights.items():
                total[name] = total[name] + tensor if name in total else tensor.clone()
        return {name: tensor / len(self.recent) for name, tensor in total.items()}
