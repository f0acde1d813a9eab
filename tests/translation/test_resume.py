"""Translators that are interrupted, in training, a validation or the test, and how they go on."""

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import drill.translation.search.search as searching
from drill.errors import OutOfMemory
from drill.models.translator import Translator
from drill.training import loop as training_loop
from drill.training.run.folder import RunFolder
from drill.translation import train as translation_training
from drill.translation.state import TranslationState
from drill.translation.translate import Search
from tests.tiny_runs import (
    after,
    all_of,
    interrupted_after,
    rows,
    unlike,
)
from tests.tiny_translations import (
    small_optimizer,
    small_training,
)


def kinds(path) -> list[str]:
    return [row["kind"] for row in rows(path)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(tmp_path, number):
    optimizer = interrupted_after(5, small_optimizer(), number)
    outcome = small_training(tmp_path, optimizer=optimizer)
    assert (outcome.finished, outcome.test) == (False, None)
    assert RunFolder(tmp_path).load_last()[1]["step"] == 5


@pytest.fixture(scope="module")
def averaged(tmp_path_factory) -> dict[str, Any]:
    """What a run comes to that nobody shutdown."""
    path = tmp_path_factory.mktemp("averaged")
    small_training(path, average_checkpoints=2)
    return all_of(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(TranslationState, "average_recent"), (translation_training, "translated")],
    ids=["mean", "test"],
)
def test_a_signal_in_the_test_ends_it_and_the_next_life_tests(
    tmp_path, monkeypatch, averaged, owner, name, number
):
    """All is saved by then, so nothing but the test is done again."""
    real = getattr(owner, name)

    def interrupted(*arguments: object, **options: object) -> object:
        os.kill(os.getpid(), number)
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        outcome = small_training(tmp_path / "run", average_checkpoints=2)
    assert (outcome.finished, outcome.interrupted, outcome.test) == (False, True, None)
    assert outcome.epoch == 3
    assert "test" not in kinds(tmp_path / "run")
    again = small_training(
        tmp_path / "run", average_checkpoints=2, optimizer=after(1, small_optimizer(), pytest.fail)
    )
    assert (again.finished, again.interrupted) == (True, False)
    assert unlike(all_of(tmp_path / "run"), averaged) == []


LIMITED = {"max_steps": 17, "validate_every": 4, "bleu_every": 1, "average_checkpoints": 2}


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> dict[str, Any]:
    """The same of a run to a limit, with six validations."""
    path = tmp_path_factory.mktemp("limited")
    small_training(path, **LIMITED)
    return all_of(path)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("name", "which"),
    [("translation_loss", 1), ("best_translations", 2), ("translation_loss", 6)],
    ids=["the first", "its search", "the last"],
)
def test_a_signal_in_a_validation_ends_it_and_the_next_life_begins_with_it(
    tmp_path, monkeypatch, limited, name, which, number
):
    """Of the last one, too, which is not of an epoch but of the limit."""
    assert len(limited["rows"]) == 6 + len(["average", "test"])
    real, left = getattr(translation_training, name), which

    def interrupted(*arguments: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(translation_training, name, interrupted)
        outcome = small_training(tmp_path / "run", **LIMITED)
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert len(kinds(tmp_path / "run")) == which - 1  # the line of a validation is written once
    assert RunFolder(tmp_path / "run").load_last()[1]["validation_pending"]
    assert small_training(tmp_path / "run", **LIMITED).finished
    assert unlike(all_of(tmp_path / "run"), limited) == []


@pytest.fixture
def line_by_line(monkeypatch):
    """Measured in batches of one line; gives what was done: "loss" or "search" for each."""
    done: list[str] = []

    def noting(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def measured(*arguments: object, **options: object) -> object:
            done.append(name)
            return real(*arguments, **options)

        return measured

    monkeypatch.setattr(translation_training, "Search", partial(Search, batch_tokens=1))
    monkeypatch.setattr(searching, "_search", noting("search", searching._search))
    monkeypatch.setattr(Translator, "loss", noting("loss", Translator.loss))
    return done


def test_a_validation_without_memory_for_it_is_told_of_and_made_by_the_next_life(
    tmp_path, monkeypatch
):
    def search(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    options = {"epochs": 1, "bleu_every": 1, "checkpoint_seconds": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(translation_training, "best_translations", search)
        with pytest.raises(OutOfMemory, match=r"validation after step \d+: .*; make room on the G"):
            small_training(tmp_path, **options)
    assert small_training(tmp_path, **options).finished


@pytest.mark.parametrize("work", ["loss", "search"])
def test_a_signal_in_the_test_waits_for_one_batch(tmp_path, monkeypatch, line_by_line, work):
    module, name = (Translator, "loss") if work == "loss" else (searching, "_search")
    testing, real = translation_training.translated, getattr(module, name)

    def interrupted(*arguments: object, **options: object) -> object:
        if work not in line_by_line:  # once: a second signal ends the process at once
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **options)

    def tested(*arguments: object, **options: object) -> object:
        line_by_line.clear()
        monkeypatch.setattr(module, name, interrupted)
        return testing(*arguments, **options)

    monkeypatch.setattr(translation_training, "translated", tested)
    outcome = small_training(tmp_path)
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert line_by_line.count(work) == 1


def test_a_signal_that_comes_after_the_test_is_told(tmp_path, monkeypatch):
    """The run is whole, but the next of several must not begin."""
    real = RunFolder.write_lines

    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(RunFolder, "write_lines", interrupted)
    outcome = small_training(tmp_path)
    assert (outcome.finished, outcome.interrupted) == (True, True)


def test_validations_and_the_test_are_shown(tmp_path, monkeypatch, line_by_line):
    """Batch by batch, and not all at once when all is done."""
    told = []
    monkeypatch.setattr(training_loop, "SHOW_EVERY", 0.0)

    def show(report):
        if report.work is not None:
            told.append((report.work, report.share, line_by_line.count("search")))

    small_training(tmp_path, epochs=2, average_checkpoints=2, bleu_every=2, progress=show)
    assert list(dict.fromkeys(work for work, _, _ in told)) == [
        "validation",
        "validation, BLEU",
        "validation of the mean",
        "test",
    ]
    for name, lines in (("validation, BLEU", 8), ("test", 6)):
        shown = [(share, searches) for work, share, searches in told if work == name]
        first = shown[0][1]
        assert list(dict.fromkeys(shown)) == [(i / lines, first + i) for i in range(lines + 1)]
    assert [share for work, share, _ in told if work == "test"].count(0.0) > 2  # the loss too
