"""Whether the mean of the last weights was better is told at the end of a run."""

import logging
from dataclasses import replace

import pytest

from drill.training.loop import TRAINING_LOG
from drill.translation import validate as translation_testing
from drill.translation.loss import translation_loss
from drill.translation.state import TranslationState
from tests.tiny_runs import rows
from tests.tiny_translation_place import set_by_command, write_pairs
from tests.tiny_translations import small_training


@pytest.fixture
def place(tmp_path):
    write_pairs(tmp_path / "pairs")
    return tmp_path


@pytest.mark.parametrize("better", [False, True])
def test_a_mean_that_was_tried_is_told_of(tmp_path, monkeypatch, caplog, better):
    real = TranslationState.average_recent

    def averaged(*held):
        """From here on a loss is half of what it is, or twice as much."""

        def loss(*given, **options):
            found = translation_loss(*given, **options)
            return replace(found, nll=found.nll * (0.5 if better else 2.0))

        monkeypatch.setattr(translation_testing, "translation_loss", loss)
        return real(*held)

    monkeypatch.setattr(TranslationState, "average_recent", averaged)
    with caplog.at_level(logging.INFO, TRAINING_LOG):
        small_training(tmp_path, epochs=4, average_checkpoints=3)
    *epochs, average, _ = rows(tmp_path)
    best = min(row["valid_perplexity"] for row in epochs)
    found = f"mean of the last 3: valid {average['valid_perplexity']:.2f}"
    kept = f"better than {best:.2f}, and kept"
    dropped = f"not better than {best:.2f}, which is kept"
    assert caplog.messages == [f"{found}, {kept if better else dropped}"]


def test_without_a_mean_nothing_is_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO, TRAINING_LOG):
        small_training(tmp_path, epochs=2, average_checkpoints=1)
    assert caplog.messages == []


def test_the_command_shows_it(drill):
    words = ["train", "mt-demo", *set_by_command(), "--name", "mean", "--device", "cpu"]
    code, _, err = drill(*words)
    assert (code, err.count("\nmean of the last 2: valid ")) == (0, 1), err
