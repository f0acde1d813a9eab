"""The training loop of translators: what a run keeps, how it ends."""

import itertools
import json
import logging
import math
import time
from dataclasses import replace

import pytest
import torch

import drill.translation.evaluate as translated_module
from drill.data import PairBatches
from drill.errors import Diverged, OutOfMemory
from drill.training.loop import TRAINING_LOG
from drill.training.optim import AdamW
from drill.training.run import checkpoint
from drill.translation import train as translation_training
from drill.translation.evaluate import translation_loss
from drill.translation.state import TranslationState
from tests.tiny_runs import (
    after,
    all_of,
    rows,
    unlike,
    weights,
)
from tests.tiny_translations import (
    small_data,
    small_optimizer,
    small_training,
    small_translator,
)

# -- what a run keeps -----------------------------------------------------------------------------


def test_best_holds_the_weights_of_the_lowest_validation_loss(tmp_path):
    data = small_data()
    outcome = small_training(
        tmp_path, data=data, optimizer=AdamW(0.3, schedule="constant"), epochs=5
    )
    losses = {row["epoch"]: row["valid_loss"] for row in rows(tmp_path) if row["kind"] == "epoch"}
    assert outcome.best_epoch == min(losses, key=losses.get)
    model = small_translator()
    numbers = checkpoint.load_into(model, tmp_path / "best.safetensors")
    assert numbers["epoch"] == outcome.best_epoch
    assert translation_loss(model, data.valid).loss == pytest.approx(outcome.valid.loss, rel=1e-6)
    assert translation_loss(model, data.test) == outcome.test.fit


def test_a_validation_inside_an_epoch_has_a_line_of_its_own(tmp_path):
    small_training(tmp_path, epochs=2, validate_every=4, bleu_every=2)
    held = rows(tmp_path)
    batches = len(PairBatches(small_data().train, 60, 3))
    steps = sorted({*range(4, 2 * batches + 1, 4), batches, 2 * batches})
    assert [row["step"] for row in held[:-1]] == steps
    assert [row["kind"] == "epoch" for row in held[:-1]] == [s % batches == 0 for s in steps]
    assert ["valid_bleu" in row for row in held[:-1]] == [i % 2 == 1 for i in range(len(steps))]


def test_a_validation_with_bleu_reads_its_text_once(tmp_path, monkeypatch):
    asked = []
    real = translation_training.translation_loss
    for module in (translation_training, translated_module):
        monkeypatch.setattr(
            module, "translation_loss", lambda *a, **k: asked.append(len(a[1])) or real(*a, **k)
        )
    small_training(tmp_path, epochs=1, bleu_every=1)
    assert asked == [8, 6]  # lines of valid, then of test


def test_the_tested_translations_are_kept(tmp_path):
    outcome = small_training(tmp_path)
    kept = (tmp_path / "test.de.hyp").read_text().split("\n")
    assert kept == [*outcome.test.hypotheses, ""]


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
    monkeypatch.setattr(translation_training, "translation_loss", loss)


@pytest.mark.usefixtures("better_means")
def test_the_mean_of_the_last_weights_is_tried_and_kept_where_it_is_better(tmp_path, caplog):
    data = small_data()
    with caplog.at_level(logging.INFO, TRAINING_LOG):
        outcome = small_training(tmp_path, data=data, epochs=6, average_checkpoints=3)
    assert caplog.records[-1].args[-1] == "the average"
    *epochs, average, test = rows(tmp_path)
    batches = len(PairBatches(data.train, 60, 3))
    assert (average["kind"], test["kind"]) == ("average", "test")
    assert average["steps"] == [4 * batches, 5 * batches, 6 * batches]
    kept = sorted(path.name for path in (tmp_path / "last").glob("recent-*"))
    assert kept == sorted(f"recent-{step}.safetensors" for step in average["steps"])
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


def test_a_mean_that_is_worse_is_not_kept(tmp_path, caplog):
    with caplog.at_level(logging.INFO, TRAINING_LOG):
        small_training(tmp_path, epochs=3, average_checkpoints=3)
    assert caplog.records[-1].args[-1] == "the best single"
    *_, average, test = rows(tmp_path)
    assert not average["best"]
    assert test["weights"] == "best"
    assert not (tmp_path / "averaged.safetensors").exists()


@pytest.mark.usefixtures("better_means")
def test_more_epochs_leave_no_stale_mean(tmp_path):
    small_training(
        tmp_path / "a",
        optimizer=AdamW(0.1, schedule="constant", warmup=0.0),
        epochs=6,
        average_checkpoints=3,
    )
    assert (tmp_path / "a" / "averaged.safetensors").exists()
    again = AdamW(0.1, schedule="constant", warmup=0.0)
    seen: list[bool] = []
    after(1, again, lambda: seen.append((tmp_path / "a" / "averaged.safetensors").exists()))
    small_training(tmp_path / "a", optimizer=again, epochs=8, average_checkpoints=3)
    assert seen == [False]
    whole = AdamW(0.1, schedule="constant", warmup=0.0)
    small_training(tmp_path / "b", optimizer=whole, epochs=8, average_checkpoints=3)
    assert unlike(all_of(tmp_path / "a"), all_of(tmp_path / "b")) == []


# -- limits ---------------------------------------------------------------------------------------


def test_updates_end_a_run_inside_an_epoch_with_a_validation(tmp_path):
    outcome = small_training(tmp_path, max_steps=4)
    assert outcome.finished
    assert outcome.epoch == 1
    held = rows(tmp_path)
    assert [row["kind"] for row in held] == ["validation", "test"]
    assert held[0]["step"] == 4


def test_the_clock_ends_a_run_properly(tmp_path, monkeypatch):
    """Every look at the clock is a second later."""
    real = time.monotonic

    def trained(minutes: float):
        clock = itertools.count(real())
        monkeypatch.setattr("time.monotonic", lambda: next(clock))
        return small_training(tmp_path, epochs=50, max_minutes=minutes)

    outcome = trained(2.0)
    assert (outcome.finished, outcome.out_of_time) == (True, True)
    assert outcome.test is not None
    held = rows(tmp_path)
    assert held[-1]["kind"] == "test"
    assert 5 <= held[-2]["step"] < 100
    before = all_of(tmp_path)
    again = trained(2.0)
    assert (again.test.scores, again.out_of_time) == (outcome.test.scores, True)
    assert unlike(all_of(tmp_path), before) == []
    assert trained(4.0).finished
    assert rows(tmp_path)[-2]["step"] > held[-2]["step"]


def test_a_schedule_follows_the_limit_that_comes_first(tmp_path):
    optimizer = AdamW(0.01, schedule="cosine", warmup=0.1)
    small_training(tmp_path, optimizer=optimizer, epochs=1000, max_steps=20, validate_every=10)
    first, last = (row["lr"] for row in rows(tmp_path) if row["kind"] == "validation")
    assert first == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * 4 / 9)), rel=1e-3)
    assert last == pytest.approx(0.0, abs=1e-6)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("translation_loss", "the validation after step {step}: NaN"),
        ("best_translations", "the translations after step {step}: NaN"),
        ("translated", "the test of the best weights in {path}: NaN"),
    ],
)
def test_an_evaluation_that_is_no_number_ends_in_a_sentence(tmp_path, monkeypatch, name, sentence):
    small_training(tmp_path / "whole", bleu_every=1, epochs=1)
    step = rows(tmp_path / "whole")[0]["step"]

    def score(*_: object, **__: object) -> None:
        raise FloatingPointError("NaN")

    with monkeypatch.context() as patch:
        patch.setattr(translation_training, name, score)
        with pytest.raises(Diverged) as caught:
            small_training(tmp_path / "run", bleu_every=1, epochs=1)
    assert str(caught.value).startswith(sentence.format(step=step, path=tmp_path / "run"))
    small_training(tmp_path / "run", bleu_every=1, epochs=1)
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []


def test_a_test_without_memory_for_it_is_told_of_and_made_by_the_next_life(tmp_path, monkeypatch):
    """A smaller max_tokens would be another run."""

    def test(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(translation_training, "translated", test)
        with pytest.raises(OutOfMemory, match=r"make room on the GPU; the same command tests them"):
            small_training(tmp_path)
    assert small_training(tmp_path, optimizer=after(1, small_optimizer(), pytest.fail)).finished


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"max_minutes": 0.0}, "max_minutes must be"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be"),
        ({"average_checkpoints": 0}, "average_checkpoints must be"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be"),
        ({"seed": -1}, "seed must be"),
        ({"length_penalty": math.inf}, "length_penalty must be"),
        ({"checkpoint_seconds": math.nan}, "checkpoint_seconds must be"),
    ],
)
def test_options_that_cannot_be_used_are_named(tmp_path, options, fault):
    with pytest.raises(ValueError, match=fault):
        small_training(tmp_path, **options)


def test_lines_of_metrics_are_json_with_what_reports_read(tmp_path):
    small_training(tmp_path, epochs=1)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    *steps, epoch, test = map(json.loads, lines)
    assert {"kind", "epoch", "step", "train_loss", "lr", "elapsed"} <= steps[0].keys()
    assert {"epoch", "step", "train_perplexity", "valid_perplexity", "lr", "tokens_per_second",
            "elapsed"} <= epoch.keys()  # fmt: skip
    assert {"valid_perplexity", "test_perplexity", "test_bleu", "test_chrf", "test_exact",
            "bleu_signature"} <= test.keys()  # fmt: skip
