"""Rules: how a training loop changes parameters, one class per way, one table (``RULES``)."""

from drill.optim.adamw import AdamW
from drill.optim.base import Rule
from drill.optim.sgd_rules import Asgd, NtAsgd, Sgd

RULES: dict[str, type[Rule]] = {"nt-asgd": NtAsgd, "asgd": Asgd, "sgd": Sgd, "adamw": AdamW}
"""Every rule by name."""
