"""How runs of either task end: epochs, steps, clock, patience; and how they start."""

import itertools
import math
import time
from typing import Any

import pytest
import torch

from drill.errors import DataError
from drill.language_modeling.evaluation.perplexity import Perplexity
from drill.report.results.runs import read_run
from drill.training.optim import AdamW, Asgd
from drill.training.progress import epoch_line
from drill.training.run.checkpoint import load
from drill.training.run.folder import RunFolder
from drill.training.state import Score, TrainingState
from tests.helpers.language_models import after, differences, rows, run_state, small_run
from tests.helpers.tasks import LM, MT, TASKS, Task, both_tasks
from tests.helpers.translators import small_training


@pytest.fixture
def scripted(monkeypatch):
    """Validations have these losses, one after the other, then 1; translations are measured."""

    def start(task: Task, *losses: float) -> None:
        left = iter(losses)

        def score(model, data, **_: object) -> tuple[Perplexity] | Score:
            if task.run is small_training:
                return Score(next(left, 1.0) * 100, 100)
            count = data.numel() - data.shape[1]
            return (Perplexity(next(left, 1.0) * count, count, data.shape[1]),)

        monkeypatch.setattr(task.module, task.evaluation, score)

    return start


@pytest.fixture
def timed(monkeypatch):
    """A run in which every look at the clock is a second later."""

    def run(task: Task, path, minutes: float | None, **options):
        with monkeypatch.context() as patch:
            clock = itertools.count(time.monotonic())
            patch.setattr("time.monotonic", lambda: next(clock))
            return task.run(path, max_minutes=minutes, **options)

    return run


def validations(path) -> list[dict[str, Any]]:
    return [row for row in rows(path) if row["kind"] in ("epoch", "validation")]


# -- patience -------------------------------------------------------------------------------------

# With a patience of 2, worse than the best before the last two: 4.2 is not, 4.4 is.
LOSSES = [5.0, 4.0, 4.3, 4.2, 4.4]


@pytest.mark.parametrize(("name", "every"), [(LM, None), (LM, 4), (MT, 4)])
def test_patience_ends_a_run_and_its_best_weights_are_tested(tmp_path, scripted, name, every):
    task = TASKS[name]
    scripted(task, *LOSSES)
    options = {"epochs": 50, "patience": 2, "validate_every": every}
    outcome = task.run(tmp_path, **options)
    assert [row["valid_loss"] for row in validations(tmp_path)] == pytest.approx(LOSSES)
    assert (outcome.finished, outcome.ended_by) == (True, "patience")
    assert outcome.best_epoch == validations(tmp_path)[1]["epoch"]
    assert rows(tmp_path)[-1]["kind"] == "test"
    no_step = after(1, task.optimizer(), pytest.fail)
    again = task.run(tmp_path, **options, optimizer=no_step)
    assert (again.finished, again.ended_by, again.epoch) == (True, "patience", outcome.epoch)
    more = task.run(tmp_path, **options | {"epochs": 60})
    assert more.ended_by == "patience"  # more epochs change nothing
    assert len(validations(tmp_path)) == 5


@both_tasks
def test_initial_weights_do_not_count_for_patience(tmp_path, scripted, task):
    """The first loss is that of the initial weights; with it the run would end an epoch sooner."""
    losses = [1.0, 5.0, 4.0, 4.5, 4.2, 4.4, 4.3, 5.5]
    scripted(task, *losses)
    outcome = task.run(tmp_path, epochs=50, validate_first=True, patience=5)
    assert [row["epoch"] for row in validations(tmp_path)] == list(range(8))
    assert (outcome.finished, outcome.epoch, outcome.best_epoch) == (True, 7, 0)


def tick(state, clocks):
    state.time_fraction = next(clocks)


@pytest.mark.parametrize(
    ("name", "limit"), [(MT, "max_steps"), (LM, "max_steps"), (LM, "max_minutes")]
)
def test_validation_at_a_limit_does_not_count_for_patience(
    tmp_path, scripted, monkeypatch, name, limit
):
    """Its loss is worse than the last; a larger limit continues all the same."""
    task = TASKS[name]
    scripted(task, 5.0, 4.0, 4.1, 4.0, 3.0, 2.0, 2.0)
    first = task.run(tmp_path / "first", epochs=2)
    steps = [row["step"] for row in validations(tmp_path / "first")]
    scripted(task, 5.0, 4.0, 4.1, 4.0, 3.0, 2.0, 2.0)
    cut = {"max_steps": steps[-1] + 1}
    if limit == "max_minutes":
        clocks = iter([0.0] * (steps[-1] + 1) + [1.0] * 100)  # asked for once before every step
        monkeypatch.setattr(TrainingState, "agree_on_time", lambda state, _: tick(state, clocks))
        cut = {"max_minutes": 60.0}
    outcome = task.run(tmp_path / "run", epochs=4, patience=0, **cut)
    assert [row["step"] for row in validations(tmp_path / "run")] == [*steps, steps[-1] + 1]
    assert (first.epoch, outcome.finished, outcome.ended_by) == (2, True, limit)
    monkeypatch.setattr(TrainingState, "agree_on_time", lambda *_: None)
    more = task.run(tmp_path / "run", epochs=4, patience=0)
    assert (more.epoch, more.ended_by) == (4, "epochs")


@both_tasks
def test_initial_weights_stay_the_best_if_nothing_is_better(tmp_path, scripted, task):
    scripted(task, 2.0, 3.0, 2.5, 2.1, 2.0)
    more = {"average_checkpoints": 3} if task.run is small_training else {"optimizer": Asgd(5.0)}
    outcome = task.run(tmp_path, "deep-residual", validate_first=True, **more)
    best, numbers = load(RunFolder(tmp_path).best)
    assert (numbers["epoch"], outcome.best_epoch, outcome.epoch) == (0, 0, 3)
    initial = task.model("deep-residual")
    assert all(torch.equal(best[name], p) for name, p in initial.named_parameters())
    first, *others = validations(tmp_path)
    assert (first["epoch"], first["step"], first["train_loss"], first["best"]) == (0, 0, None, True)
    assert [row["epoch"] for row in others] == [1, 2, 3]
    with_times, *trained = (row for row in RunFolder(tmp_path).rows() if row["kind"] == "epoch")
    assert epoch_line(with_times, 3).endswith("before training")
    speeds = sorted(row["tokens_per_second"] for row in trained)
    RunFolder(tmp_path).recipe.write_text("")
    assert read_run(tmp_path).tokens_per_second == speeds[1]  # of what was trained


def test_initial_weights_are_neither_averaged_nor_counted_for_bleu(tmp_path):
    small_training(tmp_path, validate_first=True, average_checkpoints=4, bleu_every=2)
    assert ["valid_bleu" in row for row in validations(tmp_path)] == [True, False, True, False]
    (mean,) = (row for row in rows(tmp_path) if row["kind"] == "average")
    assert mean["steps"] == [row["step"] for row in validations(tmp_path)][1:]


# -- limits ---------------------------------------------------------------------------------------


@both_tasks
def test_clock_ends_a_run_inside_an_epoch_with_a_validation_and_the_test(tmp_path, timed, task):
    outcome = timed(task, tmp_path, 1.0, epochs=50)
    assert (outcome.finished, outcome.ended_by) == (True, "max_minutes")
    assert outcome.test is not None
    found = rows(tmp_path)
    assert found[-1]["kind"] == "test"
    assert outcome.epoch == found[-2]["epoch"] < 50
    assert 60.0 <= RunFolder(tmp_path).rows()[-2]["elapsed"] < 80.0
    before = run_state(tmp_path)
    again = timed(task, tmp_path, 1.0, epochs=50)  # it has ended
    assert (again.epoch, again.ended_by) == (outcome.epoch, "max_minutes")
    assert differences(run_state(tmp_path), before) == []
    assert timed(task, tmp_path, 1.5, epochs=50).finished
    assert rows(tmp_path)[-2]["step"] > found[-2]["step"]


def test_run_that_the_clock_has_ended_continues_as_if_it_had_not(tmp_path, timed):
    options = {"optimizer": "nt-asgd", "epochs": 4}
    small_run(tmp_path / "whole", **options)
    for minutes in (0.3, 0.7, None):
        assert timed(TASKS[LM], tmp_path / "pieces", minutes, **options).finished
    both = [rows(tmp_path / name) for name in ("whole", "pieces")]
    whole, pieces = ([row for row in each if row["kind"] == "epoch"] for each in both)
    assert len(both[1]) > len(both[0])  # validations inside epochs
    for row in (*whole, *pieces):
        row.pop("best")  # those inside may have been better
    assert pieces == whole


def test_schedule_follows_the_clock(tmp_path, timed):
    optimizer = AdamW(0.01, schedule="cosine", warmup=0.1)
    timed(TASKS[LM], tmp_path, 0.5, optimizer=optimizer, epochs=1000)
    assert rows(tmp_path)[-2]["lr"] == pytest.approx(0.0, abs=1e-6)


def test_schedule_follows_the_limit_that_comes_first(tmp_path):
    optimizer = AdamW(0.01, schedule="cosine", warmup=0.1)
    small_training(tmp_path, optimizer=optimizer, epochs=1000, max_steps=20, validate_every=10)
    first, last = (row["lr"] for row in rows(tmp_path) if row["kind"] == "validation")
    assert first == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * 4 / 9)), rel=1e-3)
    assert last == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("option", "size"),
    [("batch_size", 399), ("batch_size", 200), ("valid_batch_size", 100), ("test_batch_size", 80)],
)
def test_text_shorter_than_its_batch_size_raises_before_anything_is_written(tmp_path, option, size):
    with pytest.raises(DataError, match="rows"):
        small_run(tmp_path / "run", **{option: size})
    assert not (tmp_path / "run").exists()
