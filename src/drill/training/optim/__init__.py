"""Optimizers with their schedules, clipping and weight averages."""

from drill.training.optim.adamw import AdamW
from drill.training.optim.averaging import AveragedSgd, NonMonotonicTrigger, averaged
from drill.training.optim.muon import Muon
from drill.training.optim.optimizer import RunScheduled, ScheduledOptimizer
from drill.training.optim.schedules import run_rate
from drill.training.optim.sgd import Asgd, NtAsgd, Sgd

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "Asgd",
    "AveragedSgd",
    "Muon",
    "NonMonotonicTrigger",
    "NtAsgd",
    "RunScheduled",
    "ScheduledOptimizer",
    "Sgd",
    "averaged",
    "run_rate",
]


OPTIMIZERS: dict[str, type[ScheduledOptimizer]] = {
    "nt-asgd": NtAsgd,
    "asgd": Asgd,
    "sgd": Sgd,
    "adamw": AdamW,
    "muon": Muon,
}
"""Every optimizer by name."""
