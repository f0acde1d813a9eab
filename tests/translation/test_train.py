"""The training loop of translators: what a run keeps, how it ends."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from drill.data import PairBatches
from drill.training.optim import AdamW, ScheduledOptimizer
from drill.training.run import checkpoint
from drill.translation import train as train_module
from drill.translation.evaluate import translation_loss
from drill.translation.search import beam_search
from drill.translation.search.decoding import Search
from drill.translation.train import TranslationState
from tests.helpers.language_models import after, differences, rows, run_state, weights
from tests.helpers.translators import small_data, small_training, small_translator


def test_best_holds_the_weights_of_the_lowest_validation_loss(tmp_path):
    data = small_data()
    optimizer = AdamW(0.3, schedule="constant")
    outcome = small_training(tmp_path, data=data, optimizer=optimizer, epochs=5)
    losses = {row["epoch"]: row["valid_loss"] for row in rows(tmp_path) if row["kind"] == "epoch"}
    assert outcome.best_epoch == min(losses, key=losses.get)
    model = small_translator()
    numbers = checkpoint.load_into(model, tmp_path / "best.safetensors")
    assert numbers["epoch"] == outcome.best_epoch
    assert translation_loss(model, data.valid).loss == pytest.approx(outcome.valid.loss, rel=1e-6)
    assert translation_loss(model, data.test) == outcome.test.fit
    saved = (tmp_path / "test.de.hyp").read_text().split("\n")
    assert saved == [*outcome.test.hypotheses, ""]


@pytest.fixture
def better_means(monkeypatch):
    """The loss of a mean of weights counts half: whether one is better is no matter of luck."""
    asked: list[bool] = []

    real = TranslationState.average_recent

    def averaged(*arguments):
        asked.append(True)
        return real(*arguments)

    def loss(*arguments, **options):
        found = translation_loss(*arguments, **options)
        return replace(found, nll=found.nll / 2) if asked and asked.pop() else found

    monkeypatch.setattr(TranslationState, "average_recent", averaged)
    monkeypatch.setattr(train_module, "translation_loss", loss)


@pytest.mark.usefixtures("better_means")
def test_better_average_is_saved_and_tested(tmp_path):
    data = small_data()
    outcome = small_training(tmp_path, data=data, epochs=4, average_checkpoints=3)
    *epochs, average, test = rows(tmp_path)
    batches = len(PairBatches(data.train, 60, 3))
    assert (average["kind"], test["kind"]) == ("average", "test")
    assert average["steps"] == [2 * batches, 3 * batches, 4 * batches]
    saved = sorted(path.name for path in (tmp_path / "last").glob("recent-*"))
    assert saved == sorted(f"recent-{step}.safetensors" for step in average["steps"])
    best = min(row["valid_loss"] for row in epochs)
    assert average["best"]
    assert average["valid_loss"] < best
    assert test["weights"] == "averaged"
    assert test["averaged_steps"] == average["steps"]
    parts = [weights(tmp_path / "last" / f"recent-{step}.safetensors") for step in average["steps"]]
    for name, tensor in weights(tmp_path / "averaged.safetensors").items():
        mean = sum(part[name] for part in parts) / 3
        torch.testing.assert_close(tensor, mean)
    model = small_translator()
    checkpoint.load_into(model, tmp_path / "averaged.safetensors")
    assert translation_loss(model, data.test).loss == pytest.approx(outcome.test.fit.loss, rel=1e-6)


def test_worse_average_is_not_saved(tmp_path):
    small_training(tmp_path, epochs=3, average_checkpoints=3)
    *_, average, test = rows(tmp_path)
    assert not average["best"]
    assert test["weights"] == "best"
    assert not (tmp_path / "averaged.safetensors").exists()


@pytest.mark.usefixtures("better_means")
def test_more_epochs_remove_an_older_average(tmp_path):
    def train(name: str, epochs: int, optimizer: ScheduledOptimizer) -> None:
        small_training(tmp_path / name, optimizer=optimizer, epochs=epochs, average_checkpoints=2)

    constant = partial(AdamW, 0.1, schedule="constant", warmup=0.0)
    averaged, seen = tmp_path / "a" / "averaged.safetensors", []
    train("a", 3, constant())
    assert averaged.exists()
    train("a", 4, after(1, constant(), lambda: seen.append(averaged.exists())))
    assert seen == [False]
    train("b", 4, constant())
    assert differences(run_state(tmp_path / "a"), run_state(tmp_path / "b")) == []


def test_progress_of_validations_and_the_test_is_shown(tmp_path, monkeypatch, calls_of):
    """Batch by batch, here of one line, and not all at once when all is done."""
    shown, searches = [], calls_of(beam_search, "_search")
    monkeypatch.setattr("drill.training.loop.SHOW_EVERY", 0.0)
    monkeypatch.setattr(train_module, "Search", partial(Search, batch_tokens=1))

    def show(report):
        if report.work is not None:
            shown.append((report.work, report.share, len(searches)))

    small_training(tmp_path, epochs=2, average_checkpoints=2, bleu_every=2, progress=show)
    works = ["validation", "validation, BLEU", "validation of the mean", "test"]
    assert list(dict.fromkeys(work for work, _, _ in shown)) == works
    for name, lines in (("validation, BLEU", 8), ("test", 6)):
        found = [(share, done) for work, share, done in shown if work == name]
        first = found[0][1]
        assert list(dict.fromkeys(found)) == [(i / lines, first + i) for i in range(lines + 1)]
    assert [share for work, share, _ in shown if work == "test"].count(0.0) > 2  # the loss too
