"""What the training loops of both tasks share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.language_modeling.perplexity import Perplexity
from drill.language_modeling.state import Position
from drill.layers import MatrixLayer, MixtureOfSoftmaxes, SampledSoftmax
from drill.models.language_model import LanguageModel
from drill.models.translator import Translator
from drill.training.distributed import World
from drill.training.progress import Progress
from drill.training.run.folder import RunFolder

TRAINING_LOG = "drill.training"
"""The logger that says on a GPU how a run is trained; `drill train` shows it."""


class Glance:
    """The mean loss of the epoch so far, without waiting for the device.

    On a GPU a call reads what an earlier one has sent for: a moment old, None at first.
    """

    def __init__(self, device: torch.device) -> None:
        self.waits = device.type != "cuda"
        self.sent: tuple[Tensor, torch.cuda.Event, int] | None = None
        self.value: float | None = None

    def __call__(self, at: Position, world: World) -> float | None:
        if self.waits or world.size > 1:
            return at.mean_loss(world)
        if self.sent is not None and self.sent[1].query():
            seen, _, rows = self.sent
            self.value, self.sent = float(seen) / max(1, rows), None
        if self.sent is None:
            seen = torch.empty((), dtype=at.nll.dtype, pin_memory=True)
            seen.copy_(at.nll, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.sent = (seen, event, at.row)
        return self.value


SHOW_EVERY = 0.5  # seconds between two looks at the loss


AGREE_EVERY = 20  # steps between two agreements of several processes on saving and stopping


@dataclass(frozen=True)
class Outcome:
    """What a run has come to. Unfinished, it was interrupted and can go on."""

    finished: bool
    epoch: int
    best_epoch: int
    valid: Perplexity | None
    test: Perplexity | None
    elapsed: float  # seconds of training, resumed or not
    interrupted: bool = False  # by Ctrl-C or SIGTERM, be it too late to leave anything undone
    out_of_time: bool = False  # ended by max_minutes: a larger one goes on
    stopped: bool = False  # ended by patience: validations no longer improve
    signal: int | None = None  # which one; None where another process was interrupted


def tell(
    folder: RunFolder,
    world: World,
    progress: Callable[[Progress], None] | None,
    report: Progress,
) -> None:
    """The first process writes the line of metrics and shows the progress."""
    if not world.first:
        return
    if report.row is not None:
        folder.append(report.row)
    if progress is not None:
        progress(report)


def wrapped(model: LanguageModel | Translator, world: World) -> nn.Module:
    """The model as several processes train it: its gradients are means over them."""
    if world.size == 1:
        return model
    # A step of an adaptive softmax need not touch every parameter; nor may one of another layer.
    whole = (MatrixLayer, MixtureOfSoftmaxes, SampledSoftmax)
    unused = not isinstance(model.layer, whole)
    return DistributedDataParallel(model, find_unused_parameters=unused)


def widest(device: torch.device) -> torch.dtype:
    """For sums over many steps."""
    return torch.float32 if device.type == "mps" else torch.float64
