"""Training that cannot go on: an error that says where, and the best weights are kept."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from drill.errors import Diverged
from drill.kernels.lstm.persistent.recurrence import STALLED, Stalled, take_stall
from drill.training.distributed import World
from drill.training.optim import ScheduledOptimizer
from drill.training.run.folder import RunFolder
from drill.training.state import TrainingState


def finite(
    loss: float, state: TrainingState, optimizer: ScheduledOptimizer, run: RunFolder
) -> float:
    """``loss``, or Diverged where training cannot go on from it."""
    if math.isfinite(loss):
        return loss
    last = (
        f"the last good checkpoint is {run.last}"
        if run.last.exists()
        else "no checkpoint was due before that"
    )
    if state.best is not None:
        of = f"those of epoch {state.best_epoch}" if state.best_epoch else "those it began with"
        last += f"; the best weights, {of}, are {run.best}"
    if take_stall():
        raise Diverged(
            f"{STALLED}, before step {state.step} of epoch {state.epoch}; {last}; run the same "
            "command on a free GPU, or with --set encoder.impl=cudnn"
        )
    raise Diverged(
        f"the loss became {loss} in epoch {state.epoch}, before step {state.step}, at lr "
        f"{optimizer.now:g}; {last}; train under another name with a lower rate, for example "
        f"--set optimizer.lr={optimizer.lr / 2:g}"
    )


def check_damaged(
    state: TrainingState, model: nn.Module, optimizer: ScheduledOptimizer, run: RunFolder
) -> None:
    """No checkpoint may hold what no training comes back from."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters()])
    total = torch.stack([norm.float() for norm in norms]).sum() + state.nll
    finite(float(total), state, optimizer, run)


@contextmanager
def diverged_if_nan(what: str, if_stalled: str = "") -> Iterator[None]:
    """NaN that an evaluation inside finds ends the run with its sentence, as one about ``what``.

    The parameters are finite: ``check_damaged`` has looked at them before.

    if_stalled  what mends a kernel that waited in vain, which is nobody's NaN
    """
    try:
        yield
    except FloatingPointError as error:
        raise Diverged(f"{what}: {error}") from None
    except Stalled as error:
        raise Diverged(f"{what}: {error}{if_stalled}") from None


@contextmanager
def best_kept(state: TrainingState, run: RunFolder, world: World) -> Iterator[None]:
    """Training that diverges inside loses none of the best weights."""
    try:
        yield
    except Diverged:
        if world.first:
            state.save_best(run)
        raise
