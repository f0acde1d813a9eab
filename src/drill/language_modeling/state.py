"""The training state of a language model: adds segment lengths and hidden state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drill.data import SequenceLengths
from drill.language_modeling.evaluation.perplexity import Perplexity
from drill.models.encoder import State
from drill.training.distributed import World
from drill.training.state import TrainingState


@dataclass(kw_only=True)
class LanguageModelState(TrainingState):
    """The next segment starts at row ``position`` of ``epoch_size`` rows.

    ``nll`` sums mean losses of segments times their lengths.
    """

    score: ClassVar[type] = Perplexity

    lengths: SequenceLengths  # of the segments to come
    hidden: State | None = None
    untied: bool = False  # whether the output layer has been replaced, see untie.py

    def loss_terms(self) -> int:
        return self.position

    def epoch_done(self) -> bool:
        return self.position >= self.epoch_size - 2  # a segment has at least 2 rows and a target

    def next_epoch(self) -> None:
        super().next_epoch()
        self.hidden = None

    def state_dict(self, world: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state_dict(world)
        for i, layer in enumerate(self.hidden or ()):
            for j, tensor in enumerate(layer):
                tensors[f"hidden/{i}/{j}"] = torch.cat(world.all_gather(tensor), 1)
        numbers["lengths"] = self.lengths.state()
        numbers["untied"] = self.untied
        numbers["layers"] = [] if self.hidden is None else [len(layer) for layer in self.hidden]
        return tensors, numbers

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], world: World
    ) -> None:
        super().load_state_dict(tensors, numbers, world)
        self.lengths = SequenceLengths.from_state(numbers["lengths"])
        self.untied = numbers["untied"]
        hidden = tuple(
            tuple(
                world.local_batch(tensors[f"hidden/{i}/{j}"]).to(self.nll.device)
                for j in range(count)
            )
            for i, count in enumerate(numbers["layers"])
        )
        self.hidden = hidden or None
