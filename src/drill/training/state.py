"""What every run must remember, whatever it trains, and how that is saved and found again."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from drill.training.distributed import World
from drill.training.run.folder import RunFolder

logger = logging.getLogger("drill")


@dataclass(kw_only=True)
class Standing:
    """How far a run is; what it trains adds where the next batch starts."""

    nll: Tensor  # (), of this process's part of the epoch so far
    text: int  # checksum of what is trained and evaluated on
    epoch: int = 1
    step: int = 0  # of the whole run
    loss: float = math.nan  # mean of the epoch so far, when last looked at
    best: object = None  # scores of the best weights, once there are any
    best_epoch: int = 0
    best_weights: dict[str, Tensor] | None = None  # not yet on disk
    seconds: float = 0.0  # of this epoch
    elapsed: float = 0.0  # of the run, before and after it was resumed
    test_seconds: float = 0.0  # of elapsed: tests of a run that then went on; no limit counts them
    metrics_size: int = 0  # bytes of metrics.jsonl that the checkpoint knows of
    clock: float = 0.0  # the share of the time limit, as all processes have agreed
    _ticked: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """Count the time since the last tick."""
        now = time.monotonic()
        self.seconds += now - self._ticked
        self.elapsed += now - self._ticked
        self._ticked = now

    def running(self) -> float:
        """Seconds of the run up to now, as its limit counts them."""
        return self.elapsed - self.test_seconds + time.monotonic() - self._ticked


@dataclass(frozen=True)
class Limits:
    """When training ends: whichever comes first."""

    epochs: int
    updates: int | None
    minutes: float | None

    def clock(self, at: Standing) -> float:
        """The share of the time that is used up."""
        return 0.0 if self.minutes is None else at.running() / (60.0 * self.minutes)


def keep_best(at: Any, folder: RunFolder) -> None:
    """Write the best weights of a run that stands at ``at``, where they are not on disk yet."""
    if at.best_weights is None:
        return
    folder.save_best(at.best_weights, {"epoch": at.best_epoch, "valid": asdict(at.best)})
    at.best_weights = None


def perplexity_of(loss: float) -> float:
    return math.exp(loss) if loss < 700.0 else math.inf


# -- what every process has for itself ------------------------------------------------------------


def own_tensors(at: Standing, world: World) -> dict[str, Tensor]:
    """Losses and random numbers of all processes, ``name/rank``, on the CPU."""
    held = {"nll": at.nll, "random/cpu": torch.get_rng_state()}
    if at.nll.is_cuda:
        held["random/cuda"] = torch.cuda.get_rng_state(at.nll.device)
    return {
        f"{name}/{rank}": part
        for name, tensor in held.items()
        for rank, part in enumerate(world.gathered(tensor))
    }


def take_own(at: Standing, tensors: Mapping[str, Tensor], size: int, world: World) -> None:
    """Give each process its own back; ``size`` processes had saved them.

    Where their number has changed, losses are shared equally, so that their mean stays.
    """
    losses = [tensors[f"nll/{rank}"] for rank in range(size)]
    if size != world.size:
        logger.warning(
            "saved by %d processes and going on with %d: random numbers start anew",
            size,
            world.size,
        )
        at.nll.copy_(torch.stack(losses).mean())
        torch.manual_seed(torch.initial_seed() + at.step * world.size + world.rank)
        return
    at.nll.copy_(losses[world.rank])
    torch.set_rng_state(tensors[f"random/cpu/{world.rank}"])
    cuda = tensors.get(f"random/cuda/{world.rank}")
    if at.nll.is_cuda and cuda is not None:
        torch.cuda.set_rng_state(cuda, at.nll.device)


# -- checkpoints of several processes -------------------------------------------------------------


def cut_metrics(at: Standing, folder: RunFolder, world: World) -> bool:
    """What was appended after the checkpoint is about to happen again.

    The line of a test goes too, but not the time it took: nobody sees the run's time fall. True
    where it is of a test: then save at once, or a run that is killed soon forgets it.
    """
    tested = folder.test_row() if world.first else None
    spent = 0.0 if tested is None else max(0.0, tested["elapsed"] - at.elapsed)
    spent = world.from_first(spent)
    at.elapsed += spent
    at.test_seconds += spent
    if world.first:
        folder.cut_metrics(at.metrics_size)
    return spent > 0.0
