"""TrainingState: everything that changes while a run trains, and its checkpoint."""

import abc
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drill.errors import CheckpointError, RunFolderError
from drill.training.distributed import World
from drill.training.optim import NonMonotonicTrigger, ScheduledOptimizer
from drill.training.options import ended_by, used_limits
from drill.training.progress import perplexity_of
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder, readable

logger = logging.getLogger("drill")


@dataclass(frozen=True)
class Score:
    """The score of a text: ``nll`` is the sum of -log p over ``tokens`` predicted tokens."""

    nll: float
    tokens: int

    @property
    def loss(self) -> float:
        """Mean over the predicted tokens, in nats."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.loss)

    def row(self, split: str) -> dict[str, float]:
        return {f"{split}_loss": self.loss, f"{split}_perplexity": self.perplexity}


def saved(default: Any) -> Any:
    """A field of a state whose value a checkpoint holds."""
    return field(default=default, metadata={"saved": True})


@dataclass(kw_only=True)
class TrainingState(abc.ABC):
    """The state of both tasks. A task adds its own and ``loss_terms``."""

    score_type: ClassVar[type]  # what ``best`` is an instance of

    epochs: int  # the first limit that is reached ends a run
    max_steps: int | None = None
    max_minutes: float | None = None
    epoch_size: int  # positions of an epoch
    data_checksum: int
    nll: Tensor  # (), summed over this process's part of the epoch so far
    stopper: NonMonotonicTrigger | None = None  # ends training when validations no longer improve
    epoch: int = saved(1)
    position: int = saved(0)  # in the epoch: where the next step starts
    step: int = saved(0)  # of the run
    tokens: int = saved(0)  # of the epoch, over all processes
    loss: float = math.nan  # mean of the epoch so far, when last read
    tokens_per_second: float = 0.0  # of the epoch so far, when last read; without validations
    logged_nll: float = saved(0.0)  # ``nll`` and ``loss_terms`` at the last row of training loss
    logged_terms: int = saved(0)
    best: Any = None  # score of the best weights
    best_epoch: int = saved(0)
    best_weights: dict[str, Tensor] | None = None  # not yet on disk
    seconds: float = saved(0.0)  # of this epoch
    training_seconds: float = saved(0.0)  # of this epoch, without validations
    elapsed: float = saved(0.0)  # of training and validation, summed over resumes
    metrics_size: int = 0  # bytes of metrics.jsonl that the checkpoint knows of
    time_fraction: float = 0.0  # of max_minutes, as all processes have agreed
    _ticked: float = field(default_factory=time.monotonic)

    @abc.abstractmethod
    def loss_terms(self) -> int:
        """What ``nll`` is divided by to give the mean loss."""

    # -- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Count the time since the last tick."""
        now = time.monotonic()
        self.seconds += now - self._ticked
        self.elapsed += now - self._ticked
        self._ticked = now

    def tick_training(self) -> None:
        """``tick`` after training, when its steps are done: those of a GPU may be only launched."""
        before = self.seconds
        self.tick()
        self.training_seconds += self.seconds - before
        self.tokens_per_second = self.tokens / max(1e-9, self.training_seconds)

    def agree_on_time(self, world: World) -> None:
        """How much of ``max_minutes`` is used up, by the process that has used most."""
        seconds = self.elapsed + time.monotonic() - self._ticked
        limit = math.inf if self.max_minutes is None else 60.0 * self.max_minutes
        self.time_fraction = world.all_reduce_max(seconds / limit)

    # -- progress and limits ----------------------------------------------------------------------

    def progress(self) -> float:
        """How much of the run is done, by the limit that comes first."""
        by_epochs = (self.epoch - 1 + self.position / self.epoch_size) / self.epochs
        by_steps = 0.0 if self.max_steps is None else self.step / self.max_steps
        return max(by_epochs, by_steps, self.time_fraction)

    def epoch_done(self) -> bool:
        return self.position >= self.epoch_size

    def ended_by(self) -> str | None:
        """The setting that ends the run here; None if it goes on."""
        minutes = self.time_fraction * (self.max_minutes or 0.0)
        used = used_limits(self.epoch, self.step, minutes)
        return ended_by(vars(self), used, self.stopper is not None and self.stopper.triggered)

    def is_done(self) -> bool:
        """Whether a limit is reached and there are weights to test."""
        return self.ended_by() is not None and self.best is not None

    def last_epoch(self) -> int:
        """The one that ended last, or that a limit has cut."""
        return self.epoch if self.position else self.epoch - 1

    def mean_loss(self, world: World) -> float:
        """Mean of the epoch so far; waits for the device."""
        return world.mean(float(self.nll)) / max(1, self.loss_terms())

    # -- changes ----------------------------------------------------------------------------------

    def update_best(self, score: Score, model: nn.Module, world: World) -> bool:
        """Copy the weights if they are the best so far; the first process will write them."""
        better = self.best is None or score.loss < self.best.loss
        if better:
            self.best, self.best_epoch = score, self.epoch
            self.best_weights = checkpoint.copied(model, world.is_main)
        return better

    def next_epoch(self) -> None:
        self.epoch += 1
        self.position = self.tokens = 0
        self.seconds = self.training_seconds = 0.0
        self.logged_nll, self.logged_terms = 0.0, 0
        self.nll.zero_()

    def training_row(self, lr: float, world: World) -> dict[str, Any]:
        """A row of metrics.jsonl: the loss of this epoch since the last such row."""
        nll, terms = world.mean(float(self.nll)), self.loss_terms()  # waits for the device
        self.tick_training()
        self.loss = nll / max(1, terms)
        loss = (nll - self.logged_nll) / max(1, terms - self.logged_terms)
        self.logged_nll, self.logged_terms = nll, terms
        return {"kind": "step", **self._row(loss, lr)}

    def validation_row(
        self, score: Score, *, lr: float, averaged: bool, best: bool
    ) -> dict[str, Any]:
        return {
            **self._row(self.loss if self.position > 0 else None, lr),
            **score.row("valid"),
            "averaged": averaged,
            "best": best,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
        }

    def _row(self, loss: float | None, lr: float) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "position": self.position,
            "epoch_size": self.epoch_size,
            "train_loss": loss,
            "train_perplexity": None if loss is None else perplexity_of(loss),
            "lr": lr,
            "elapsed": self.elapsed,
        }

    # -- checkpoints ------------------------------------------------------------------------------

    def _saved(self) -> list[str]:
        return [f.name for f in fields(self) if "saved" in f.metadata]

    def state_dict(self, world: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of all processes as ``name/rank``, and numbers. All processes call it."""
        tensors = {"nll": self.nll, "random/cpu": torch.get_rng_state()}
        if self.nll.is_cuda:
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.nll.device)
        gathered = {
            f"{name}/{rank}": part
            for name, tensor in tensors.items()
            for rank, part in enumerate(world.all_gather(tensor))
        }
        numbers = {
            **{name: getattr(self, name) for name in self._saved()},
            "best": None if self.best is None else asdict(self.best),
            "stopper": None if self.stopper is None else self.stopper.state_dict(),
            "world": world.size,
            "text": self.data_checksum,
        }
        return gathered, numbers

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], world: World
    ) -> None:
        """Load a ``state_dict``, also one of another number of processes."""
        for name in self._saved():
            setattr(self, name, numbers[name])
        self.best = None if numbers["best"] is None else self.score_type(**numbers["best"])
        if self.stopper is not None and numbers["stopper"] is not None:
            self.stopper.load_state_dict(numbers["stopper"])
        self.metrics_size = numbers["metrics_size"]
        size = numbers["world"]
        losses = [tensors[f"nll/{rank}"] for rank in range(size)]
        if size != world.size:
            logger.warning(
                "saved by %d processes and resumed with %d: random numbers start again",
                size,
                world.size,
            )
            self.nll.copy_(torch.stack(losses).mean())  # so that their mean stays
            torch.manual_seed(torch.initial_seed() + self.step * world.size + world.rank)
            return
        self.nll.copy_(losses[world.rank])
        torch.set_rng_state(tensors[f"random/cpu/{world.rank}"])
        cuda = tensors.get(f"random/cuda/{world.rank}")
        if self.nll.is_cuda and cuda is not None:
            torch.cuda.set_rng_state(cuda, self.nll.device)

    def save(
        self, model: nn.Module, optimizer: ScheduledOptimizer, run: RunFolder, world: World
    ) -> None:
        """Write best.safetensors if it has changed, then the checkpoint that belongs to it."""
        self.tick()
        tensors, numbers = self.state_dict(world)
        tensors |= {f"model/{name}": p for name, p in model.named_parameters()}
        moments, numbers["optimizer"] = checkpoint.split_tensors(optimizer.state_dict())
        tensors |= {f"optimizer/{name}": tensor for name, tensor in moments.items()}
        tensors = world.gather(tensors)
        if world.is_main:
            if self.best_weights is not None:
                best = {"epoch": self.best_epoch, "valid": asdict(self.best)}
                run.save_best(self.best_weights, best)
            run.save_last(tensors, numbers)
        self.best_weights = None
        world.barrier()  # until it is on disk
        self.tick()

    def restore(
        self, model: nn.Module, optimizer: ScheduledOptimizer, run: RunFolder, world: World
    ) -> bool:
        """Go back to the last checkpoint; False if there is none. metrics.jsonl is not cut."""
        last = run.load_last()
        step = torch.tensor(-1 if last is None else last[1]["step"])
        steps = {int(s) for s in world.all_gather(step)}
        if len(steps) > 1:  # processes would wait for each other forever
            raise CheckpointError(
                f"{run.last}: the processes read different checkpoints; give all machines one "
                "shared folder for --runs"
            )
        if last is None:
            return False
        tensors, numbers = last
        with readable(run.last, checkpoint.HINT):
            if numbers["text"] != self.data_checksum:
                raise RunFolderError(
                    f"{run.path}: the text has changed since this run was saved; restore it, or "
                    "train under another name"
                )
            weights = checkpoint.strip_prefix("model/", tensors)
            checkpoint.copy_into(model, weights, str(run.last))
            moments = checkpoint.strip_prefix("optimizer/", tensors)
            optimizer.load_state_dict(moments | numbers["optimizer"])
            self.load_state_dict(tensors, numbers, world)
        return True
