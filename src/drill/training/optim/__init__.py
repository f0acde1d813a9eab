"""Optimisation of language models: averaged SGD, schedules, and the rules a loop trains by."""

from drill.training.optim.adamw import AdamW
from drill.training.optim.averaging import (
    AveragedSgd,
    NonMonotone,
    NonMonotoneState,
    WeightAverage,
    averaged,
)
from drill.training.optim.optimizer import Rule, clip_, scaled_lr
from drill.training.optim.schedules import inverse_sqrt, one_cycle, run_rate, warmup_cosine
from drill.training.optim.sgd import Asgd, NtAsgd, Sgd

__all__ = [
    "RULES",
    "AdamW",
    "Asgd",
    "AveragedSgd",
    "NonMonotone",
    "NonMonotoneState",
    "NtAsgd",
    "Rule",
    "Sgd",
    "WeightAverage",
    "averaged",
    "clip_",
    "inverse_sqrt",
    "one_cycle",
    "run_rate",
    "scaled_lr",
    "warmup_cosine",
]


RULES: dict[str, type[Rule]] = {"nt-asgd": NtAsgd, "asgd": Asgd, "sgd": Sgd, "adamw": AdamW}
"""Every rule by name."""
