"""What tests of both tasks need: small runs, their models, optimizers and evaluations."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from torch import nn

from drill import tasks
from drill.language_modeling import train as language_model_train
from drill.training.loop import Outcome
from drill.training.optim import ScheduledOptimizer
from drill.training.settings import Settings
from drill.translation import train as translation_train
from tests.helpers.language_models import OPTIMIZERS, interrupted_after, small_model, small_run
from tests.helpers.translators import small_optimizer, small_training, small_translator


class Task(NamedTuple):
    run: Callable[..., Outcome]
    model: Callable[..., nn.Module]
    optimizer: Callable[[], ScheduledOptimizer]
    module: ModuleType  # where ``evaluation`` is looked up
    evaluation: str


LM, MT = "language model", "translator"
TASKS: dict[str, Any] = {
    LM: Task(small_run, small_model, OPTIMIZERS["sgd"], language_model_train, "evaluate_tokens"),
    MT: Task(
        small_training, small_translator, small_optimizer, translation_train, "translation_loss"
    ),
}
both_tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@contextmanager
def interrupted(steps: int, number: int = signal.SIGINT) -> Iterator[None]:
    """Inside, training from a recipe gets a signal after ``steps`` steps."""
    real = tasks.build_optimizer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tasks,
            "build_optimizer",
            lambda settings: interrupted_after(steps, real(settings), number),
        )
        yield


def stop(settings: Settings, folder: Path | str, steps: int) -> None:
    """Train, with Ctrl-C after ``steps`` steps."""
    with interrupted(steps), pytest.raises(KeyboardInterrupt):
        tasks.train(settings, folder, device="cpu")
