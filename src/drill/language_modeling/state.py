"""Where a run stands: all that changes while it trains, and how that is saved and found again."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from drill.data import SequenceLengths
from drill.errors import RunFolderError
from drill.language_modeling.perplexity import Perplexity
from drill.models.encoder import State
from drill.training.distributed import World
from drill.training.optim import NonMonotone, Rule
from drill.training.run.checkpoint import copied, copy_into, under
from drill.training.run.folder import RunFolder, agree, fitting
from drill.training.state import Limits, Standing, keep_best, own_tensors, perplexity_of, take_own


@dataclass
class Position(Standing):
    """The next segment starts at row ``row`` of epoch ``epoch``.

    ``nll`` sums mean losses of segments times their lengths.
    """

    lengths: SequenceLengths
    stopper: NonMonotone | None
    row: int = 0
    hidden: State | None = None
    best: Perplexity | None = field(default=None, kw_only=True)
    training_seconds: float = field(default=0.0, kw_only=True)  # of this epoch, validation apart

    def mean_loss(self, world: World) -> float:
        """Mean of the epoch so far; waits for the device, so it also knows the time of training."""
        mean = world.mean(float(self.nll)) / max(1, self.row)
        self.tick()
        self.training_seconds = self.seconds
        return mean

    def offer(self, scores: Perplexity, model: nn.Module) -> bool:
        """Keep a copy of the weights if they are the best so far."""
        better = self.best is None or scores.loss < self.best.loss
        if better:
            self.best, self.best_epoch = scores, self.epoch
            self.best_weights = copied(model)
        return better

    def share(self, limits: Limits, rows: int) -> float:
        """How much of the run is done, by the limit that comes first."""
        return max((self.epoch - 1 + self.row / rows) / limits.epochs, self.clock)

    def complete(self, limits: Limits) -> bool:
        """Whether all epochs are trained, or as many as were worth it."""
        return self.stopped() or self.epoch > limits.epochs

    def stopped(self) -> bool:
        """Whether validations no longer improve."""
        return self.stopper is not None and self.stopper.triggered

    def over(self, limits: Limits) -> bool:
        """Whether the run is complete, or the time is up."""
        return self.complete(limits) or (self.clock >= 1.0 and self.best is not None)

    def epochs(self) -> int:
        """How many were trained; the last of them perhaps in part."""
        return self.epoch if self.row else self.epoch - 1

    def next_epoch(self) -> None:
        self.epoch += 1
        self.row = 0
        self.hidden = None
        self.seconds = self.training_seconds = 0.0
        self.loss = float("nan")
        self.nll.zero_()

    # -- lines of metrics.jsonl -------------------------------------------------------------------

    def epoch_row(
        self, valid: Perplexity, *, lr: float, averaged: bool, best: bool
    ) -> dict[str, Any]:
        trained = self.row > 0
        return {
            "kind": "epoch",
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": self.loss if trained else None,
            "train_perplexity": perplexity_of(self.loss) if trained else None,
            "valid_loss": valid.loss,
            "valid_perplexity": valid.perplexity,
            "valid_published": valid.published_perplexity,
            "lr": lr,
            "averaged": averaged,
            "best": best,
            "seconds": self.seconds,
            "elapsed": self.elapsed,
        }

    def test_row(self, test: Perplexity) -> dict[str, Any]:
        assert self.best is not None
        return {
            "kind": "test",
            "epoch": self.best_epoch,
            "valid_loss": self.best.loss,
            "valid_perplexity": self.best.perplexity,
            "valid_published": self.best.published_perplexity,
            "test_loss": test.loss,
            "test_perplexity": test.perplexity,
            "test_published": test.published_perplexity,
            "elapsed": self.elapsed,
        }


def save(at: Position, model: nn.Module, rule: Rule, folder: RunFolder, world: World) -> None:
    """Write best.safetensors where it is due, then the checkpoint that knows of it."""
    at.tick()
    tensors = {f"hidden/{name}": torch.cat(world.gathered(t), 1) for name, t in _named(at.hidden)}
    tensors |= own_tensors(at, world)
    if not world.first:
        at.best_weights = None
        world.wait()
        return
    tensors |= {f"model/{name}": p for name, p in model.named_parameters()}
    tensors |= {f"rule/{name}": tensor for name, tensor in rule.tensors().items()}
    numbers = {
        "epoch": at.epoch,
        "row": at.row,
        "step": at.step,
        "seconds": at.seconds,
        "elapsed": at.elapsed,
        "test_seconds": at.test_seconds,
        "best": None if at.best is None else asdict(at.best),
        "best_epoch": at.best_epoch,
        "lengths": at.lengths.state(),
        "stopper": None if at.stopper is None else at.stopper.state_dict(),
        "rule": rule.numbers(),
        "layers": [] if at.hidden is None else [len(layer) for layer in at.hidden],
        "world": world.size,
        "text": at.text,
    }
    keep_best(at, folder)
    folder.save_last(tensors, numbers)
    world.wait()  # nobody goes on before it is on disk


def restore(at: Position, model: nn.Module, rule: Rule, folder: RunFolder, world: World) -> bool:
    """Put the run back to its last checkpoint; False where there is none. Metrics stay whole."""
    found = folder.load_last()
    agree(found, folder, world)
    if found is None:
        return False
    tensors, numbers = found
    device = next(model.parameters()).device
    with fitting(folder):
        if numbers["text"] != at.text:
            raise RunFolderError(
                f"{folder.path}: the text has changed since this run was saved; restore it, or "
                "train under another name"
            )
        copy_into(dict(model.named_parameters()), under("model/", tensors), str(folder.last))
        rule.load(under("rule/", tensors), numbers["rule"])
        at.epoch, at.row, at.step = numbers["epoch"], numbers["row"], numbers["step"]
        at.seconds, at.elapsed = numbers["seconds"], numbers["elapsed"]
        at.test_seconds = numbers.get("test_seconds", 0.0)  # older runs have not written it down
        at.best = None if numbers["best"] is None else Perplexity(**numbers["best"])
        at.best_epoch = numbers["best_epoch"]
        at.lengths = SequenceLengths.from_state(numbers["lengths"])
        if at.stopper is not None and numbers["stopper"] is not None:
            at.stopper.load_state_dict(numbers["stopper"])
        at.hidden = (
            tuple(
                tuple(world.columns(tensors[f"hidden/{i}/{j}"]).to(device) for j in range(count))
                for i, count in enumerate(numbers["layers"])
            )
            or None
        )
        take_own(at, tensors, numbers["world"], world)
        at.metrics_size = numbers["metrics_size"]
    return True


def _named(hidden: State | None) -> Iterator[tuple[str, Tensor]]:
    for i, layer in enumerate(hidden or ()):
        for j, tensor in enumerate(layer):
            yield f"{i}/{j}", tensor
