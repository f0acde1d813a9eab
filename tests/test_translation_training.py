"""The training loop of translators: what an update is, what a run keeps, how it ends."""

import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

import drill.evaluation.search as searching
import drill.evaluation.translated as translated_module
from drill import checkpoint, translation_testing, translation_training
from drill.checkpoint import CheckpointError
from drill.data import IGNORE, PairBatches
from drill.divergence import Diverged
from drill.evaluation.memory import MemoryShort
from drill.evaluation.search import Decoding, encoded_once
from drill.evaluation.translation_loss import translation_loss
from drill.optim import AdamW
from drill.run_folder import RunFolder, RunFolderError
from drill.translation import Search
from drill.translation_position import averaged as mean_of_weights
from drill.translation_steps import (
    backward,
    capturing,
    replayed,
    translation_ways,
    why_not_captured,
)
from drill.translator import Translator
from tests.tiny_runs import (
    after,
    all_of,
    interrupted_after,
    rows,
    unlike,
    weights,
    with_a_test_at,
)
from tests.tiny_translations import (
    LAYERS,
    small_data,
    small_rule,
    small_training,
    small_translator,
    text,
)

CPU = torch.device("cpu")


def kinds(path) -> list[str]:
    return [row["kind"] for row in rows(path)]


# -- an update ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("layer", ["plain", "mixture"])
def test_the_gradient_is_that_of_the_mean_over_all_tokens_of_the_update(
    tmp_path, monkeypatch, accumulate, layer
):
    data, seen = small_data(), []
    model = small_translator(layer, dropout=0.0, dtype=torch.float64)
    by_hand = small_translator(layer, dropout=0.0, dtype=torch.float64)
    rule = small_rule()
    step = rule.step

    def spied(*arguments):
        seen.append({name: p.grad.clone() for name, p in model.named_parameters()})
        step(*arguments)

    monkeypatch.setattr(rule, "step", spied)
    small_training(tmp_path, rule=rule, model=model, data=data, updates=1, accumulate=accumulate)
    batches = list(PairBatches(data.train, 60, 3).epoch(1))[:accumulate]
    tokens = sum(batch.target_tokens for batch in batches)
    for batch in batches:
        loss = by_hand.loss(*batch[:3], label_smoothing=0.1, ignore_index=IGNORE, reduction="sum")
        (loss / tokens).backward()
    for name, p in by_hand.named_parameters():
        torch.testing.assert_close(seen[0][name], p.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("layer", ["plain", "mixture"])
def test_gradients_for_replays_are_those_of_an_update(layer, count):
    found, truth = (small_translator(layer, dropout=0.0, dtype=torch.float64) for _ in range(2))
    update = list(PairBatches(small_data().train, 60, 3, multiple=4).epoch(1))[:count]
    tokens = sum(batch.target_tokens for batch in update)
    captured = capturing(found, 0.1, None)
    ours = replayed(captured, update, tokens, CPU)
    theirs = backward(truth, truth, update, tokens, 0.1, CPU)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    for a, b in zip(found.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replayed_training_is_launched_training(tmp_path, precision):
    for name, capture in (("replayed", True), ("launched", False)):
        model = small_translator("deep-residual").cuda()
        options = {"pad_to": 8, "capture": capture, "precision": precision, "epochs": 4}
        small_training(tmp_path / name, model=model, **options)
    ours, theirs = (rows(tmp_path / name) for name in ("replayed", "launched"))
    for a, b in zip(ours, theirs, strict=True):
        assert a["valid_loss"] == pytest.approx(b["valid_loss"], rel=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_batch_that_asks_for_nothing_adds_nothing(layer):
    """As processes get it that are left without pairs at the end of an epoch."""
    model = small_translator(layer)
    shards = [PairBatches(small_data(train=1).train, rank=rank, size=2) for rank in range(2)]
    updates = [list(shard.epoch(0)) for shard in shards]
    (idle,) = [update for update in updates if update[0].target_tokens == 0]
    assert float(backward(model, model, idle, 5, 0.1, CPU)) == 0.0
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@pytest.mark.gpu
def test_an_interrupted_run_of_replays_is_the_same_run(tmp_path):
    """Up to what a GPU adds in another order, and to which batches are replays."""

    def trained(name: str, rule=None):
        model = small_translator("deep-residual").cuda()
        options = {"pad_to": 8, "capture": True, "epochs": 4, "average": 2}
        return small_training(tmp_path / name, rule=rule, model=model, **options)

    trained("whole")
    assert not trained("pieces", interrupted_after(9, small_rule())).finished
    assert trained("pieces").finished
    whole, pieces = (rows(tmp_path / name) for name in ("whole", "pieces"))
    assert [row["kind"] for row in pieces] == [row["kind"] for row in whole]
    for ours, theirs in zip(pieces, whole, strict=True):
        assert ours["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when inductor is imported
def test_compiled_training_is_eager_training(tmp_path):
    for name, compiled in (("compiled", True), ("eager", False)):
        small_training(
            tmp_path / name, "plain", dropout=0.0, dtype=torch.float64, updates=2,
            precision="float32", compile=compiled,
        )  # fmt: skip
    ours, theirs = (weights(tmp_path / n / "best.safetensors") for n in ("compiled", "eager"))
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, None),
        ({"capture": False}, "asked for"),
        ({"device": CPU}, "CUDA graphs need an NVIDIA GPU, not cpu"),
        ({"compile": True}, "training.compile is set"),
        ({"world_size": 4}, "4 processes exchange gradients, which no graph holds"),
    ],
)
def test_why_batches_are_not_replayed_is_said(options, fault):
    usual = {"capture": True, "compile": False, "device": torch.device("cuda"), "world_size": 1}
    assert why_not_captured(**{**usual, **options}) == fault


def test_a_translator_says_in_which_ways_it_is_trained_and_searched():
    here = "CUDA graphs need an NVIDIA GPU, not cpu"
    last = f"beam search launched one by one: {here}"
    between = "residuals and norms reference (made for CUDA devices, not cpu)"
    labels = "labels reference (the labels are on cpu)"
    model = small_translator("plain", dropout=0.0)
    assert translation_ways(model, None, 60, None) == [
        "attention flash (to earlier tokens and past padding)",
        between,
        labels,
        "loss reference (the logits take only 0.1 MiB)",
        "batches replayed as CUDA graphs",
        last,
    ]
    many = translation_ways(model, "asked for", 8192, torch.bfloat16)
    assert many[3:] == [
        "loss chunked (the logits would take 4 MiB)", "batches launched one by one: asked for", last
    ]  # fmt: skip
    model.transformer.decoder[0].attention.dropout = 0.5  # the CPU's fused kernel has none
    assert translation_ways(model, here, 60, None)[0].startswith("attention math (")
    mixture = translation_ways(small_translator("mixture"), here, 60, None)
    assert [way.split(" ")[0] for way in mixture] == ["attention", "residuals", "batches", "beam"]
    compiled = translation_ways(model, here, 60, None, compile=True)
    assert not any("encoded" in way for way in (*many, *mixture, *compiled))  # of one batch
    assert compiled[1] == "residuals and norms reference (torch.compile fuses by itself)"


@pytest.mark.parametrize(("way", "encodings"), [("replayed", 3), ("launched", 1)])
def test_how_often_an_update_encodes_its_labels_is_said(monkeypatch, way, encodings):
    model, made = small_translator("deep-residual"), []
    real = model.layer.labels
    monkeypatch.setattr(model.layer, "labels", lambda *a, **k: made.append(1) or real(*a, **k))
    update = list(PairBatches(small_data().train, 60, 3).epoch(1))[:3]
    tokens = sum(batch.target_tokens for batch in update)
    if way == "replayed":
        replayed(capturing(model, 0.1, None), update, tokens, CPU)
    else:
        backward(model, model, update, tokens, 0.1, CPU)
    assert len(made) == encodings
    obstacle = None if way == "replayed" else "asked for"
    said = translation_ways(model, obstacle, 60, None, batches=3)
    expected = "labels encoded once an update" if encodings == 1 else "labels encoded once a batch"
    assert [each for each in said if "encoded" in each] == [expected]
    several = translation_ways(model, "4 processes", 60, None, batches=3, world_size=4)
    assert "labels encoded once a batch" in several
    tied = translation_ways(small_translator("tied"), None, 60, None, batches=3)
    assert not any("encoded" in each for each in tied)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", ["plain", "mixture"])
def test_a_gpu_searches_in_the_way_it_says(layer):
    model = small_translator(layer).cuda()
    *_, found = translation_ways(model, None, 60, torch.bfloat16)
    with encoded_once(model) as head:
        replays = Decoding(bos=1, eos=2).replays(torch.device("cuda"), head)
    said = {True: "replayed as CUDA graphs", False: "MixtureOfSoftmaxes does not fold"}
    assert found.endswith(said[replays])


def test_the_reported_loss_is_that_of_all_tokens_of_the_epoch(tmp_path):
    data = small_data()
    still = AdamW(1e-12, weight_decay=0.0, schedule="constant", warmup=0.0)
    small_training(tmp_path, "plain", rule=still, data=data, dropout=0.0, epochs=1, accumulate=2)
    model, total, tokens = small_translator("plain", dropout=0.0), 0.0, 0
    for batch in PairBatches(data.train, 60, 3).epoch(1):
        total += model.loss(*batch[:3], ignore_index=IGNORE, reduction="sum").item()
        tokens += batch.target_tokens
    row = rows(tmp_path)[0]
    assert row["train_loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert row["tokens"] == tokens


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_learns(tmp_path, layer):
    outcome = small_training(tmp_path, layer, epochs=6, accumulate=2)
    losses = [row["valid_loss"] for row in rows(tmp_path) if row["kind"] == "epoch"]
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.valid.loss == min(losses)
    assert outcome.test.scores.lines == 6


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_every_precision_learns(tmp_path, precision):
    small_training(tmp_path, epochs=4, precision=precision)
    losses = [row["valid_loss"] for row in rows(tmp_path)[:-1]]
    assert losses[-1] < losses[0]


def test_compile_compiles_the_transformer_alone(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **options: asked.append((type(self), options))
    )
    small_training(tmp_path, updates=1, compile=True)
    assert [(kind.__name__, options) for kind, options in asked] == [
        ("Transformer", {"dynamic": True})
    ]


# -- what a run keeps -----------------------------------------------------------------------------


def test_best_holds_the_weights_of_the_lowest_validation_loss(tmp_path):
    data = small_data()
    outcome = small_training(tmp_path, data=data, rule=AdamW(0.3, schedule="constant"), epochs=5)
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
    real = translation_testing.translation_loss
    for module in (translation_testing, translated_module):
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

    def averaged(*arguments):
        asked.append(True)
        return mean_of_weights(*arguments)

    def loss(*arguments, **options):
        found = translation_loss(*arguments, **options)
        return replace(found, nll=found.nll / 2) if asked and asked.pop() else found

    monkeypatch.setattr(translation_testing, "averaged", averaged)
    monkeypatch.setattr(translation_testing, "translation_loss", loss)


@pytest.mark.usefixtures("better_means")
def test_the_mean_of_the_last_weights_is_tried_and_kept_where_it_is_better(tmp_path):
    data = small_data()
    outcome = small_training(tmp_path, data=data, epochs=6, average=3)
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


def test_a_mean_that_is_worse_is_not_kept(tmp_path):
    small_training(tmp_path, epochs=3, average=3)  # the first weights are far from the last
    *_, average, test = rows(tmp_path)
    assert not average["best"]
    assert test["weights"] == "best"
    assert not (tmp_path / "averaged.safetensors").exists()


@pytest.mark.usefixtures("better_means")
def test_more_epochs_leave_no_stale_mean(tmp_path):
    small_training(
        tmp_path / "a", rule=AdamW(0.1, schedule="constant", warmup=0.0), epochs=6, average=3
    )
    assert (tmp_path / "a" / "averaged.safetensors").exists()
    again = AdamW(0.1, schedule="constant", warmup=0.0)
    seen: list[bool] = []
    after(1, again, lambda: seen.append((tmp_path / "a" / "averaged.safetensors").exists()))
    small_training(tmp_path / "a", rule=again, epochs=8, average=3)
    assert seen == [False]
    whole = AdamW(0.1, schedule="constant", warmup=0.0)
    small_training(tmp_path / "b", rule=whole, epochs=8, average=3)
    assert unlike(all_of(tmp_path / "a"), all_of(tmp_path / "b")) == []


# -- limits ---------------------------------------------------------------------------------------


def test_updates_end_a_run_inside_an_epoch_with_a_validation(tmp_path):
    outcome = small_training(tmp_path, updates=4)
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


def test_the_time_of_a_run_never_falls_when_it_goes_on_after_its_test(tmp_path):
    for updates, tested in ((2, 1000.0), (4, 2000.0)):
        small_training(tmp_path, updates=updates, max_minutes=10.0)
        with_a_test_at(tmp_path, tested)
        outcome = small_training(tmp_path, updates=updates + 2, max_minutes=10.0)
        assert not outcome.out_of_time
        assert outcome.elapsed >= tested
        held = RunFolder(tmp_path).rows()
        assert held[-2]["elapsed"] >= tested
        assert held[-2]["step"] == updates + 2  # what was tested does not count for the limit


def test_nor_does_it_fall_when_that_life_is_killed_before_it_has_saved(tmp_path):
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    small_training(tmp_path, updates=2)
    with_a_test_at(tmp_path, 1000.0)
    with pytest.raises(Killed):
        small_training(tmp_path, updates=4, rule=after(1, small_rule(), die))
    assert small_training(tmp_path, updates=4).elapsed >= 1000.0


def test_a_schedule_follows_the_limit_that_comes_first(tmp_path):
    rule = AdamW(0.01, schedule="cosine", warmup=0.1)
    small_training(tmp_path, rule=rule, epochs=1000, updates=20, validate_every=10)
    first, last = (row["lr"] for row in rows(tmp_path) if row["kind"] == "validation")
    assert first == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * 4 / 9)), rel=1e-3)
    assert last == pytest.approx(0.0, abs=1e-6)


# -- resuming -------------------------------------------------------------------------------------


def in_pieces(path, steps: int, **options) -> int:
    for life in range(1, 100):
        torch.manual_seed(life)  # the saved state counts, not the one found
        rule = interrupted_after(steps, small_rule())
        if small_training(path, rule=rule, **options).finished:
            return life
    raise AssertionError("100 lives were not enough")


@pytest.mark.parametrize(
    ("layer", "steps", "options"),
    [
        ("deep-residual", 1, {"epochs": 2}),
        ("tied", 4, {"accumulate": 2, "average": 2, "validate_every": 3}),
        ("mixture", 5, {"accumulate": 2}),
        ("tied", 3, {"precision": "bfloat16", "bleu_every": 1, "epochs": 2}),
    ],
)
def test_an_interrupted_run_is_the_same_run(tmp_path, layer, steps, options):
    small_training(tmp_path / "whole", layer, **options)
    lives = in_pieces(tmp_path / "pieces", steps, layer=layer, **options)
    whole = all_of(tmp_path / "whole")
    last = [row for row in whole["rows"] if row["kind"] == "epoch"][-1]["step"]
    assert lives == last // steps + 1  # asked after the last update, it ends before the test
    assert unlike(all_of(tmp_path / "pieces"), whole) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(tmp_path, number):
    rule = interrupted_after(5, small_rule(), number)
    outcome = small_training(tmp_path, rule=rule)
    assert (outcome.finished, outcome.test) == (False, None)
    assert RunFolder(tmp_path).load_last()[1]["step"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["averaged", "translated"])
def test_a_signal_in_the_test_ends_it_and_the_next_life_tests(tmp_path, monkeypatch, name, number):
    """All is saved by then, so nothing but the test is done again."""
    small_training(tmp_path / "whole", average=2)
    real = getattr(translation_testing, name)

    def interrupted(*arguments: object, **options: object) -> object:
        os.kill(os.getpid(), number)
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(translation_testing, name, interrupted)
        outcome = small_training(tmp_path / "run", average=2)
    assert (outcome.finished, outcome.interrupted, outcome.test) == (False, True, None)
    assert outcome.epoch == 3
    assert "test" not in kinds(tmp_path / "run")
    again = small_training(tmp_path / "run", average=2, rule=after(1, small_rule(), pytest.fail))
    assert (again.finished, again.interrupted) == (True, False)
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("name", "which"),
    [("translation_loss", 1), ("best_translations", 2), ("translation_loss", 6)],
    ids=["the first", "its search", "the last"],
)
def test_a_signal_in_a_validation_ends_it_and_the_next_life_begins_with_it(
    tmp_path, monkeypatch, name, which, number
):
    """Of the last one, too, which is not of an epoch but of the limit."""
    options = {"updates": 17, "validate_every": 4, "bleu_every": 1, "average": 2}
    small_training(tmp_path / "whole", **options)
    assert len(kinds(tmp_path / "whole")) == 6 + len(["average", "test"])
    real, left = getattr(translation_testing, name), which

    def interrupted(*arguments: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(translation_testing, name, interrupted)
        outcome = small_training(tmp_path / "run", **options)
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert len(kinds(tmp_path / "run")) == which - 1  # the line of a validation is written once
    assert RunFolder(tmp_path / "run").load_last()[1]["broken_off"]
    assert small_training(tmp_path / "run", **options).finished
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []


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

    options = {"epochs": 1, "bleu_every": 1, "save_every": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(translation_testing, "best_translations", search)
        with pytest.raises(MemoryShort, match=r"validation after step \d+: .*; make room on the G"):
            small_training(tmp_path, **options)
    assert small_training(tmp_path, **options).finished


@pytest.mark.parametrize("work", ["loss", "search"])
def test_a_signal_in_the_test_waits_for_one_batch(tmp_path, monkeypatch, line_by_line, work):
    module, name = (Translator, "loss") if work == "loss" else (searching, "_search")
    testing, real = translation_testing.translated, getattr(module, name)

    def interrupted(*arguments: object, **options: object) -> object:
        if work not in line_by_line:  # once: a second signal ends the process at once
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **options)

    def tested(*arguments: object, **options: object) -> object:
        line_by_line.clear()
        monkeypatch.setattr(module, name, interrupted)
        return testing(*arguments, **options)

    monkeypatch.setattr(translation_testing, "translated", tested)
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
    monkeypatch.setattr(translation_testing, "SHOW_EVERY", 0.0)

    def show(report):
        if report.work is not None:
            told.append((report.work, report.share, line_by_line.count("search")))

    small_training(tmp_path, epochs=2, average=2, bleu_every=2, progress=show)
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


def test_a_finished_run_gives_its_outcome_again_without_training(tmp_path, monkeypatch):
    first = small_training(tmp_path, average=2)
    before = all_of(tmp_path)
    for name in ("backward", "validated", "tested"):  # nothing is trained or measured
        monkeypatch.setattr(translation_training, name, None)
    again = small_training(tmp_path, average=2)
    assert again.test.scores == first.test.scores
    assert replace(again, valid=first.valid, test=first.test) == first
    assert unlike(all_of(tmp_path), before) == []


def test_texts_that_changed_are_noticed(tmp_path):
    small_training(tmp_path, rule=interrupted_after(5, small_rule()))
    with pytest.raises(RunFolderError, match="the texts have changed since this run was saved"):
        small_training(tmp_path, data=small_data(train=59))


def test_a_checkpoint_that_lacks_something_is_named(tmp_path):
    small_training(tmp_path, rule=interrupted_after(5, small_rule()))
    folder = RunFolder(tmp_path)
    tensors, numbers = folder.load_last()
    del numbers["validated"]
    checkpoint.save(folder.last, tensors, numbers)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        small_training(tmp_path)


# -- faults ---------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_checkpoint(tmp_path):
    model = small_translator()
    rule = after(5, small_rule(), lambda: model.layer.bias.data.fill_(math.nan))
    with pytest.raises(Diverged, match=r"the loss became nan in epoch 1.*last good checkpoint"):
        small_training(tmp_path, model=model, rule=rule, save_every=0.0)
    _, numbers = RunFolder(tmp_path).load_last()
    assert numbers["step"] == 4
    assert all(
        tensor.isfinite().all()
        for tensor in weights(tmp_path / "last/checkpoint.safetensors").values()
        if tensor.is_floating_point()
    )


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
        patch.setattr(translation_testing, name, score)
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
        patch.setattr(translation_testing, "translated", test)
        with pytest.raises(MemoryShort, match=r"make room on the GPU; the same command tests them"):
            small_training(tmp_path)
    assert small_training(tmp_path, rule=after(1, small_rule(), pytest.fail)).finished


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"epochs": 0}, "epochs is at least 1, not 0"),
        ({"updates": 0}, "updates is at least 1, not 0"),
        ({"max_minutes": 0.0}, "max_minutes is a positive number, not 0.0"),
        ({"accumulate": 0}, "accumulate is at least 1"),
        ({"average": 0}, "average is at least 1"),
        ({"label_smoothing": 1.0}, r"label_smoothing lies in \[0, 1\)"),
        ({"seed": -1}, "seed lies in 0"),
        ({"length_penalty": math.inf}, "length_penalty is a finite number, not inf"),
        ({"save_every": math.nan}, "save_every is at least 0 seconds"),
    ],
)
def test_options_that_cannot_be_used_are_named(tmp_path, options, fault):
    with pytest.raises(ValueError, match=fault):
        small_training(tmp_path, **options)


def test_lines_of_metrics_are_json_with_what_reports_read(tmp_path):
    small_training(tmp_path, epochs=1)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    epoch, test = map(json.loads, lines)
    assert {"epoch", "step", "train_perplexity", "valid_perplexity", "lr", "tokens_per_second",
            "elapsed"} <= epoch.keys()  # fmt: skip
    assert {"valid_perplexity", "test_perplexity", "test_bleu", "test_chrf", "test_exact",
            "bleu_signature"} <= test.keys()  # fmt: skip


def test_the_text_of_these_tests_is_a_language():
    assert all(s == t[::-1] for s, t in zip(*vars(text().train).values(), strict=True))
