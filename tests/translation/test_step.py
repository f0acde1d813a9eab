"""A step of a translator: its gradient, launched or replayed, and what is said of it."""

import pytest
import torch

from drill.data import IGNORE_INDEX, PairBatches
from drill.models import Transformer
from drill.training.distributed import World
from drill.training.optim import AdamW
from drill.translation.step import backward, captured_backward
from drill.translation.train import TranslationTask
from tests.helpers.language_models import interrupted_after, rows, weights
from tests.helpers.translators import (
    small_data,
    small_optimizer,
    small_task,
    small_training,
    small_translator,
)

CPU = torch.device("cpu")
ON_A_GPU = {"pad_to_multiple_of": 8, "epochs": 4}


@pytest.mark.parametrize("gradient_accumulation_steps", [1, 3])
@pytest.mark.parametrize("layer", ["plain", "mixture"])
def test_gradient_is_that_of_the_mean_over_all_tokens_of_the_step(
    tmp_path, monkeypatch, gradient_accumulation_steps, layer
):
    data, seen = small_data(), []
    model = small_translator(layer, dropout=0.0, dtype=torch.float64)
    by_hand = small_translator(layer, dropout=0.0, dtype=torch.float64)
    optimizer = small_optimizer()
    step = optimizer.step

    def spied(*arguments):
        seen.append({name: p.grad.clone() for name, p in model.named_parameters()})
        step(*arguments)

    monkeypatch.setattr(optimizer, "step", spied)
    options = {"max_steps": 1, "gradient_accumulation_steps": gradient_accumulation_steps}
    small_training(tmp_path, optimizer=optimizer, model=model, data=data, **options)
    batches = list(PairBatches(data.train, 60, 3).epoch(1))[:gradient_accumulation_steps]
    tokens = sum(batch.target_tokens for batch in batches)
    for batch in batches:
        loss = by_hand.loss(
            *batch[:3], label_smoothing=0.1, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        (loss / tokens).backward()
    for name, p in by_hand.named_parameters():
        torch.testing.assert_close(seen[0][name], p.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("layer", ["plain", "mixture"])
def test_gradients_for_replays_are_those_of_a_step(layer, count, tmp_path, monkeypatch):
    found, truth = (small_translator(layer, dropout=0.0, dtype=torch.float64) for _ in range(2))
    batches = list(PairBatches(small_data().train, 60, 3, multiple=4).epoch(1))[:count]
    tokens = sum(batch.target_tokens for batch in batches)
    task = small_task(tmp_path, model=found, label_smoothing=0.1)
    monkeypatch.setattr(TranslationTask, "_capture_blocker", lambda _: None)
    task.prepare(None)
    ours = captured_backward(task.captured, batches, tokens, CPU)
    theirs = backward(truth, truth, batches, tokens, 0.1, CPU)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    for a, b in zip(found.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-5), ("bfloat16", 5e-3)])
def test_replayed_training_is_launched_training(tmp_path, precision, limit):
    """On an H200 the same bits in float32, and 0.1% apart in bfloat16, whose losses are 1% off."""
    for name, cuda_graphs in (("replayed", True), ("launched", False)):
        model = small_translator("deep-residual").cuda()
        options = {**ON_A_GPU, "cuda_graphs": cuda_graphs, "precision": precision}
        small_training(tmp_path / name, model=model, **options)
    ours, theirs = (rows(tmp_path / name) for name in ("replayed", "launched"))
    for a, b in zip(ours, theirs, strict=True):
        assert a["valid_loss"] == pytest.approx(b["valid_loss"], rel=limit)


@pytest.mark.parametrize("layer", ["deep-residual", "mixture", "adaptive"])
def test_batch_that_asks_for_nothing_adds_nothing(layer):
    """As processes get it that are left without pairs at the end of an epoch."""
    model = small_translator(layer)
    shards = [PairBatches(small_data(train=1).train, rank=rank, size=2) for rank in range(2)]
    steps = [list(shard.epoch(0)) for shard in shards]
    (idle,) = [batches for batches in steps if batches[0].target_tokens == 0]
    assert float(backward(model, model, idle, 5, 0.1, CPU)) == 0.0
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@pytest.mark.gpu
def test_interrupted_run_of_replays_is_the_same_run(tmp_path):
    """Up to what a GPU adds in another order, and to which batches are replays."""

    def trained(name: str, optimizer=None):
        model = small_translator("deep-residual").cuda()
        options = {**ON_A_GPU, "cuda_graphs": True, "average_checkpoints": 2}
        return small_training(tmp_path / name, optimizer=optimizer, model=model, **options)

    trained("whole")
    assert not trained("pieces", interrupted_after(9, small_optimizer())).finished
    assert trained("pieces").finished
    whole, pieces = (rows(tmp_path / name) for name in ("whole", "pieces"))
    assert [row["kind"] for row in pieces] == [row["kind"] for row in whole]
    for ours, theirs in zip(pieces, whole, strict=True):
        assert ours["valid_loss"] == pytest.approx(theirs["valid_loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it is imported
def test_compiled_training_is_eager_training(tmp_path, monkeypatch):
    """Traced as ever, with gradients; inductor alone would take a minute more."""
    asked = []

    def traced(transformer, **options):
        asked.append(options)
        torch.nn.Module.compile(transformer, backend="aot_eager", **options)

    monkeypatch.setattr(Transformer, "compile", traced)
    for name, compiled in (("compiled", True), ("eager", False)):
        small_training(
            tmp_path / name, "plain", dropout=0.0, dtype=torch.float64, max_steps=2,
            precision="float32", compile=compiled,
        )  # fmt: skip
    assert asked == [{"dynamic": True}]
    saved = (weights(tmp_path / n / "best.safetensors") for n in ("compiled", "eager"))
    torch.testing.assert_close(*saved, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "replayed"), ({"cuda_graphs": False}, "is false"), ({"device": CPU}, "not cpu"),
        ({"compile": True}, "training.compile"), ({"world": World(size=4)}, "several processes"),
    ],
)  # fmt: skip
def test_kernels_name_each_part_and_why_batches_are_launched(options, fault, tmp_path):
    given = {"device": torch.device("cuda"), **options}
    device = given.pop("device")
    task = small_task(tmp_path, "plain", gradient_accumulation_steps=4, **given)
    task.device = device
    parts = task.kernels(None)
    assert [part.split(" ")[0] for part in parts] == ["residuals", "labels", "loss", "batches"]
    assert fault in parts[3]
    assert ("torch.compile" in parts[0]) == ("compile" in options)


def test_reported_loss_is_that_of_all_tokens_of_the_epoch(tmp_path):
    data = small_data()
    still = AdamW(1e-12, weight_decay=0.0, schedule="constant", warmup=0.0)
    options = {"data": data, "dropout": 0.0, "epochs": 1, "gradient_accumulation_steps": 2}
    small_training(tmp_path, "plain", optimizer=still, **options)
    model, total, tokens = small_translator("plain", dropout=0.0), 0.0, 0
    for batch in PairBatches(data.train, 60, 3).epoch(1):
        total += model.loss(*batch[:3], ignore_index=IGNORE_INDEX, reduction="sum").item()
        tokens += batch.target_tokens
    row = rows(tmp_path)[0]
    assert row["train_loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert row["tokens"] == tokens
