"""Optimizers with their schedules, clipping and weight averages."""

from drill.training.optim.adamw import AdamW
from drill.training.optim.averaging import AveragedSgd, NonMonotone, averaged
from drill.training.optim.muon import Muon
from drill.training.optim.optimizer import ScheduledOptimizer, clip_, scaled_lr
from drill.training.optim.schedules import inverse_sqrt, one_cycle, run_rate
from drill.training.optim.sgd import Asgd, NtAsgd, Sgd

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "Asgd",
    "AveragedSgd",
    "Muon",
    "NonMonotone",
    "NtAsgd",
    "ScheduledOptimizer",
    "Sgd",
    "averaged",
    "clip_",
    "inverse_sqrt",
    "one_cycle",
    "run_rate",
    "scaled_lr",
]


OPTIMIZERS: dict[str, type[ScheduledOptimizer]] = {
    "nt-asgd": NtAsgd,
    "asgd": Asgd,
    "sgd": Sgd,
    "adamw": AdamW,
    "muon": Muon,
}
"""Every optimizer by name."""
