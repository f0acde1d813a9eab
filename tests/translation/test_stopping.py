"""Translators that end where validations no longer improve, and that have a start to beat."""

import os
import signal

import pytest
import torch

from drill.report.results.runs import read_run
from drill.training.progress import epoch_line
from drill.training.run.checkpoint import load
from drill.training.run.folder import RunFolder
from drill.translation import train as translation_training
from drill.translation.evaluate import TranslationLoss
from tests.tiny_runs import after, all_of, interrupted_after, rows, unlike
from tests.tiny_translations import small_optimizer, small_training, small_translator

# Worse than the best before the last two: 4.2 is not, 4.4 is.
LOSSES = [5.0, 4.0, 4.3, 4.2, 4.4]


@pytest.fixture
def scripted(monkeypatch):
    """Validations come to these losses, one after the other; what is tested is measured."""

    def begin(losses):
        left, real = iter(losses), translation_training.translation_loss

        def scripted_loss(*given, **options):
            real(*given, **options)
            return TranslationLoss(next(left) * 100, 100)

        monkeypatch.setattr(translation_training, "translation_loss", scripted_loss)

    return begin


def validations(path):
    return [row for row in rows(path) if row["kind"] in ("epoch", "validation")]


@pytest.mark.parametrize("every", [None, 4], ids=["epochs", "and inside them"])
def test_patience_ends_a_run_and_its_best_weights_are_tested(tmp_path, scripted, every):
    scripted([*LOSSES, 3.9])  # the last one is asked for by the test
    options = {"epochs": 50, "patience": 2, "validate_every": every}
    outcome = small_training(tmp_path, **options)
    assert [row["valid_loss"] for row in validations(tmp_path)] == LOSSES
    assert (outcome.finished, outcome.stopped, outcome.out_of_time) == (True, True, False)
    assert outcome.best_epoch == validations(tmp_path)[1]["epoch"]
    assert rows(tmp_path)[-1]["kind"] == "test"
    again = small_training(tmp_path, **options, optimizer=after(1, small_optimizer(), pytest.fail))
    assert (again.finished, again.stopped, again.epoch) == (True, True, outcome.epoch)
    further = small_training(tmp_path, **options | {"epochs": 60})
    assert further.stopped  # more epochs do not wake it
    assert len(validations(tmp_path)) == 5


@pytest.mark.parametrize("limit", ["max_steps", "max_minutes"])
def test_where_a_limit_falls_says_nothing_of_patience(tmp_path, scripted, monkeypatch, limit):
    """Its validation is worse than the last; a larger limit goes on all the same."""
    scripted([5.0, 4.0, 4.1, 4.0, 3.0, 2.0, 2.0])
    epoch = 6  # updates
    cut = {"max_steps": 2 * epoch + 1}
    if limit == "max_minutes":
        clocks = iter([0.0] * (2 * epoch + 1) + [1.0] * 100)  # asked for once before all updates
        monkeypatch.setattr("drill.training.state.Limits.time_fraction", lambda *_: next(clocks))
        cut = {"max_minutes": 60.0}
    outcome = small_training(tmp_path, epochs=4, patience=0, **cut)
    assert [row["step"] for row in validations(tmp_path)] == [epoch, 2 * epoch, 2 * epoch + 1]
    assert (outcome.finished, outcome.stopped) == (True, False)
    monkeypatch.setattr("drill.training.state.Limits.time_fraction", lambda *_: 0.0)
    further = small_training(tmp_path, epochs=4, patience=0)
    assert (further.epoch, further.stopped) == (4, False)


def test_without_patience_worse_validations_end_nothing(tmp_path, scripted):
    scripted([1.0, 2.0, 3.0, 4.0, 5.0])
    outcome = small_training(tmp_path, epochs=4)
    assert (outcome.epoch, outcome.stopped) == (4, False)


@pytest.mark.parametrize("layer", ["tied", "deep-residual"])
def test_an_interrupted_run_has_the_same_patience(tmp_path, layer):
    """Its steps are so long that it soon gets worse."""
    options = {
        "epochs": 40,
        "patience": 1,
        "validate_every": 3,
        "validate_first": True,
        "bleu_every": 2,
    }

    def optimizer():
        made = small_optimizer()
        made.lr = 0.5
        return made

    whole = small_training(tmp_path / "whole", layer, optimizer=optimizer(), **options)
    assert whole.stopped
    for life in range(100):
        torch.manual_seed(life)
        piece = interrupted_after(4, optimizer())
        if small_training(tmp_path / "pieces", layer, optimizer=piece, **options).finished:
            break
    assert unlike(all_of(tmp_path / "pieces"), all_of(tmp_path / "whole")) == []


def test_given_weights_stay_where_nothing_is_better(tmp_path, scripted):
    scripted([2.0, 3.0, 2.5, 2.1, 2.0])
    outcome = small_training(tmp_path, "deep-residual", validate_first=True, average_checkpoints=3)
    best, numbers = load(RunFolder(tmp_path).best)
    assert (numbers["epoch"], outcome.best_epoch, outcome.epoch) == (0, 0, 3)
    given = small_translator("deep-residual")
    assert all(torch.equal(best[name], p) for name, p in given.named_parameters())
    first, *others = validations(tmp_path)
    assert (first["kind"], first["epoch"], first["step"], first["tokens"]) == ("epoch", 0, 0, 0)
    assert (first["train_loss"], first["train_perplexity"]) == (None, None)
    timed, *trained = (row for row in RunFolder(tmp_path).rows() if row["kind"] == "epoch")
    assert epoch_line(timed, 3).endswith("before training")
    speeds = sorted(row["tokens_per_second"] for row in trained)
    assert read_run(tmp_path).tokens_per_second == speeds[1]  # of what was trained
    assert [row["epoch"] for row in others] == [1, 2, 3]


def test_the_start_is_no_validation_of_the_run(tmp_path):
    """Neither of those whose mean is tried, nor of those that every other has a BLEU."""
    small_training(tmp_path, validate_first=True, average_checkpoints=4, bleu_every=2)
    assert ["valid_bleu" in row for row in validations(tmp_path)] == [True, False, True, False]
    (mean,) = (row for row in rows(tmp_path) if row["kind"] == "average")
    steps = [row["step"] for row in validations(tmp_path)]
    assert mean["steps"] == steps[1:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_start_is_validated_ends_that_and_the_next_life_begins_with_it(
    tmp_path, monkeypatch, number
):
    small_training(tmp_path / "whole", validate_first=True)
    real = translation_training.translation_loss

    def interrupted(*arguments, **options):
        os.kill(os.getpid(), number)
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(translation_training, "translation_loss", interrupted)
        outcome = small_training(tmp_path / "run", validate_first=True)
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert not RunFolder(tmp_path / "run").metrics.exists()
    assert small_training(tmp_path / "run", validate_first=True).finished
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []


def test_patience_below_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="patience must be"):
        small_training(tmp_path, patience=-1)
