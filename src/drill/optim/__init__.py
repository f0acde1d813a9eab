"""Optimisation of language models: averaged SGD, schedules, and the rules a loop trains by."""

from drill.optim.averaging import AveragedSgd, NonMonotone, NonMonotoneState, averaged
from drill.optim.rules import RULES, AdamW, Asgd, NtAsgd, Rule, Sgd, clip_, scaled_lr
from drill.optim.schedules import inverse_sqrt, one_cycle, warmup_cosine

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
