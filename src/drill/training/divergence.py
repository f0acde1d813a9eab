"""Training that cannot go on, told in a sentence; nothing that was learnt before is lost."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from drill.errors import Diverged
from drill.kernels.lstm.persistent.recurrence import STALLED, Stalled, take_stall
from drill.training.distributed import World
from drill.training.optim import Rule
from drill.training.run.folder import RunFolder
from drill.training.state import Standing, keep_best


def finite(loss: float, at: Standing, rule: Rule, folder: RunFolder) -> float:
    """``loss``, or Diverged where training cannot go on from it."""
    if math.isfinite(loss):
        return loss
    last = (
        f"the last good checkpoint is {folder.last}"
        if folder.last.exists()
        else "no checkpoint was due before that"
    )
    if at.best is not None:
        of = f"those of epoch {at.best_epoch}" if at.best_epoch else "those it began with"
        last += f"; the best weights, {of}, are {folder.best}"
    if take_stall():
        raise Diverged(
            f"{STALLED}, before step {at.step} of epoch {at.epoch}; {last}; run the same command "
            "on a free GPU, or with --set encoder.impl=cudnn"
        )
    raise Diverged(
        f"the loss became {loss} in epoch {at.epoch}, before step {at.step}, at lr {rule.now:g}; "
        f"{last}; train under another name with a lower rate, for example "
        f"--set optimizer.lr={rule.lr / 2:g}"
    )


def refuse_damaged(at: Standing, model: nn.Module, rule: Rule, folder: RunFolder) -> None:
    """No checkpoint may hold what no training comes back from."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters()])
    finite(float(torch.stack([norm.float() for norm in norms]).sum() + at.nll), at, rule, folder)


@contextmanager
def diverged_if_nan(what: str, if_stalled: str = "") -> Iterator[None]:
    """NaN that an evaluation inside finds ends the run with its sentence, as one about ``what``.

    The parameters are finite: ``refuse_damaged`` has looked at them before.

    if_stalled  what mends a kernel that waited in vain, which is nobody's NaN
    """
    try:
        yield
    except FloatingPointError as error:
        raise Diverged(f"{what}: {error}") from None
    except Stalled as error:
        raise Diverged(f"{what}: {error}{if_stalled}") from None


@contextmanager
def best_kept(at: Standing, folder: RunFolder, world: World) -> Iterator[None]:
    """Training that diverges inside loses none of the best weights."""
    try:
        yield
    except Diverged:
        if world.first:
            keep_best(at, folder)
        raise
