"""Optimisation of language models: averaged SGD, schedules, and the rules a loop trains by."""

from drill.optim.adamw import AdamW
from drill.optim.averaging import AveragedSgd, NonMonotone, NonMonotoneState, averaged
from drill.optim.base import Rule, clip_, scaled_lr
from drill.optim.rules import RULES
from drill.optim.schedules import inverse_sqrt, one_cycle, warmup_cosine
from drill.optim.sgd_rules import Asgd, NtAsgd, Sgd

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
    "averaged",
    "clip_",
    "inverse_sqrt",
    "one_cycle",
    "scaled_lr",
    "warmup_cosine",
]
