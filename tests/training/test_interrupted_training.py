"""Signals and failed evaluations of either task; the resumed run is equal.

How a language model and a translator are trained without one is in their own folders.
"""

import os
import signal
from functools import partial
from unittest.mock import Mock

import pytest

from drill.errors import Diverged
from drill.kernels.runtime.stalls import Stalled
from drill.language_modeling import train as language_model_train
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import acting, differences, run_state, uninterrupted_run
from tests.helpers.tasks import LM, MT, TASKS

pytestmark = pytest.mark.usefixtures("default_ctrl_c")


def signal_at(patch, owner: object, name: str, number: int, which: int = 1) -> None:
    """At the start of call ``which`` of a function."""
    stop = partial(os.kill, os.getpid(), number)
    patch.setattr(owner, name, acting(getattr(owner, name), which, stop))


FIRST = {"validate_first": True}
LIMIT = {"max_steps": 17, "validate_every": 4, "bleu_every": 1, "average_checkpoints": 2}


@pytest.mark.parametrize(
    ("name", "function", "which", "options"),
    [
        (LM, "evaluate_tokens", 1, {}),
        (LM, "evaluate_tokens", 1, FIRST),
        (MT, "translation_loss", 1, FIRST),
        (MT, "best_translations", 2, LIMIT),
        (MT, "translation_loss", 6, LIMIT),  # that of the limit, not of an epoch
    ],
)
def test_signal_in_a_validation_stops_after_it(
    tmp_path, monkeypatch, name, function, which, options
):
    task = TASKS[name]
    with monkeypatch.context() as patch:
        signal_at(patch, task.module, function, signal.SIGINT, which)
        outcome = task.run(tmp_path, **options)
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert task.run(tmp_path, **options).finished
    assert differences(run_state(tmp_path), uninterrupted_run(task.run, **options)) == []


NAN = FloatingPointError("NaN")
WITH_BLEU = {"bleu_every": 1, "epochs": 1}


@pytest.mark.parametrize(
    ("name", "function", "which", "fault", "options"),
    [
        (LM, "evaluate_tokens", 1, NAN, {}),
        (LM, "evaluate_tokens", 4, Stalled("stalled"), {}),  # the test
        (MT, "translation_loss", 1, NAN, WITH_BLEU),
        (MT, "best_translations", 1, NAN, WITH_BLEU),
        (MT, "evaluate_translator", 1, NAN, WITH_BLEU),
    ],
)
def test_failed_evaluation_raises_and_a_resume_repeats_it(
    tmp_path, monkeypatch, name, function, which, fault, options
):
    task = TASKS[name]

    fail = Mock(side_effect=fault)
    with monkeypatch.context() as patch:
        patch.setattr(task.module, function, acting(getattr(task.module, function), which, fail))
        with pytest.raises(Diverged, match=f"(validation|translations|test) .*{fault}"):
            task.run(tmp_path, **options)
    assert RunFolder(tmp_path).test_row() is None
    task.run(tmp_path, **options)
    assert differences(run_state(tmp_path), uninterrupted_run(task.run, **options)) == []


@pytest.mark.parametrize(
    ("name", "owner", "function"),
    [
        (LM, language_model_train, "load_into"),  # its test takes seconds
        (MT, RunFolder, "write_lines"),  # after the search
    ],
)
def test_signal_too_late_to_interrupt_is_reported(tmp_path, monkeypatch, name, owner, function):
    """The run is complete, but the next of several must not start."""
    signal_at(monkeypatch, owner, function, signal.SIGINT)
    outcome = TASKS[name].run(tmp_path)
    assert (outcome.finished, outcome.interrupted) == (True, True)
    assert outcome.test is not None
