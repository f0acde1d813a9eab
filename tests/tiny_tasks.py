"""What tests of both tasks need: small runs, their models, optimizers and evaluations."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from torch import nn

from drill.language_modeling import train as language_model_training
from drill.training.loop import Outcome
from drill.training.optim import ScheduledOptimizer
from drill.translation import train as translation_training
from tests.tiny_runs import OPTIMIZERS, small_model, small_run
from tests.tiny_translations import small_optimizer, small_training, small_translator


class Task(NamedTuple):
    run: Callable[..., Outcome]
    model: Callable[..., nn.Module]
    optimizer: Callable[[], ScheduledOptimizer]
    module: ModuleType  # where ``evaluation`` is looked up
    evaluation: str


LM, MT = "language model", "translator"
TASKS: dict[str, Any] = {
    LM: Task(small_run, small_model, OPTIMIZERS["sgd"], language_model_training, "evaluate_tokens"),
    MT: Task(
        small_training, small_translator, small_optimizer, translation_training, "translation_loss"
    ),
}
both_tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
