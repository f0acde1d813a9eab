"""What can go wrong in a run: numbers that are none, a full disk. Nothing learnt before is lost."""

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from drill.errors import CheckpointError, Diverged, RunFolderError
from drill.kernels.lstm.persistent import recurrence as lstm_persistent
from drill.kernels.lstm.persistent.recurrence import Stalled
from drill.language_modeling import train as training
from drill.language_modeling.perplexity import Perplexity
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder
from tests.tiny_runs import (
    OPTIMIZERS,
    after,
    all_of,
    interrupted_after,
    rows,
    small_model,
    small_run,
    unlike,
    weights,
)

# -- numbers that are none ------------------------------------------------------------------------


def poisoned(path: Path, step: int, value: float, name: str = "layer.bias", **options) -> str:
    """Train with one number of a parameter set to ``value`` after ``step``; gives the sentence."""
    model = small_model("deep-residual")
    parameter = dict(model.named_parameters())[name]

    def poison() -> None:
        parameter.data.view(-1)[3] = value

    with pytest.raises(Diverged) as caught:
        small_run(path, optimizer=after(step, OPTIMIZERS["sgd"](), poison), model=model, **options)
    return str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["layer.bias", "encoder.lstms.0.weight_hh_l0"])
def test_the_last_good_checkpoint_stays_and_is_named(tmp_path, value, name):
    sentence = poisoned(tmp_path, 15, value, name, checkpoint_seconds=0.0)
    folder = RunFolder(tmp_path)
    assert "in epoch 2, before step 15, at lr 5" in sentence
    assert f"the last good checkpoint is {folder.last}" in sentence
    assert "--set optimizer.lr=2.5" in sentence
    tensors, numbers = folder.load_last()
    assert numbers["step"] == 14
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    assert all(tensor.isfinite().all() for tensor in floats)
    assert all(tensor.isfinite().all() for tensor in weights(folder.best).values())


def test_the_best_weights_are_kept_where_no_checkpoint_was_due(tmp_path):
    sentence = poisoned(tmp_path, 15, math.nan)
    folder = RunFolder(tmp_path)
    assert "no checkpoint was due before that" in sentence
    assert f"the best weights, those of epoch 1, are {folder.best}" in sentence
    small_run(tmp_path / "whole", "deep-residual", epochs=1)
    kept, best = weights(folder.best), weights(RunFolder(tmp_path / "whole").best)
    assert kept.keys() == best.keys()
    assert all(torch.equal(kept[name], best[name]) for name in best)


def test_a_run_goes_on_from_the_last_good_checkpoint(tmp_path):
    small_run(tmp_path / "whole", "deep-residual")
    poisoned(tmp_path / "run", 15, math.nan, checkpoint_seconds=0.0)
    small_run(tmp_path / "run", "deep-residual")
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_last_step_of_an_epoch_is_no_exception(tmp_path, value):
    """The loss of the epoch is fine, the weights after it are not."""
    small_run(tmp_path / "whole", "deep-residual", epochs=1)
    steps = rows(tmp_path / "whole")[0]["step"]
    for epochs in (1, 2):
        path = tmp_path / f"of {epochs}"
        sentence = poisoned(path, steps, value, epochs=epochs)
        assert f"in epoch 1, before step {steps}" in sentence
        assert "no checkpoint was due before that" in sentence
        assert not RunFolder(path).last.exists()
        assert not RunFolder(path).best.exists()
        assert rows(path) == []


@pytest.mark.parametrize(("log_every", "step"), [(None, 4), (100, 11)])
def test_it_is_found_with_the_next_row_of_metrics(tmp_path, log_every, step):
    sentence = poisoned(tmp_path, 3, math.nan, log_every=log_every)
    assert f"in epoch 1, before step {step}" in sentence


def test_a_rate_that_is_too_high_ends_in_the_sentence(tmp_path):
    optimizer = OPTIMIZERS["sgd"]()
    optimizer.lr, optimizer.max_grad_norm = 1e30, None
    with pytest.raises(Diverged, match=r"the loss became (nan|inf) in epoch \d, before step"):
        small_run(tmp_path, optimizer=optimizer, checkpoint_seconds=0.0)


NO_NUMBER = pytest.mark.parametrize(
    "fault",
    [FloatingPointError("perplexity: the loss is NaN"), Stalled("perplexity: it waited in vain")],
    ids=lambda fault: type(fault).__name__,
)


@NO_NUMBER
def test_a_validation_that_is_no_number_though_the_weights_are_ends_in_a_sentence(
    tmp_path, monkeypatch, fault
):
    def score(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(training, "perplexity", score)
    with pytest.raises(Diverged, match=f"the validation after step 11: {fault}"):
        small_run(tmp_path)


@NO_NUMBER
def test_a_test_that_is_no_number_ends_in_a_sentence_and_can_be_made_again(
    tmp_path, monkeypatch, fault
):
    folder, score = RunFolder(tmp_path / "run"), training.perplexity
    small_run(tmp_path / "whole")

    def broken(model: nn.Module, columns: Tensor, **options: object) -> Perplexity:
        if columns.shape[1] == 1:  # as the test text is laid out
            raise fault
        return score(model, columns, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "perplexity", broken)
        with pytest.raises(Diverged) as caught:
            small_run(folder.path)
    assert str(folder.best) in str(caught.value)
    assert str(fault) in str(caught.value)
    assert folder.test_row() is None
    small_run(folder.path)
    assert unlike(all_of(folder.path), all_of(tmp_path / "whole")) == []


def test_a_kernel_that_waited_in_vain_is_not_blamed_on_the_rate(tmp_path, monkeypatch):
    flag = torch.ones(1, dtype=torch.int32)
    monkeypatch.setattr(lstm_persistent, "_flags", {0: flag})
    sentence = poisoned(tmp_path, 15, math.nan, checkpoint_seconds=0.0)
    folder = RunFolder(tmp_path)
    assert sentence.startswith(f"{lstm_persistent.STALLED}, before step 15 of epoch 2")
    assert str(folder.last) in sentence
    assert str(folder.best) in sentence
    assert not flag.any()
    assert "the loss became nan in epoch 2" in poisoned(tmp_path, 1, math.nan)
    small_run(tmp_path, "deep-residual")
    small_run(tmp_path / "whole", "deep-residual")
    assert unlike(all_of(tmp_path), all_of(tmp_path / "whole")) == []


def test_flags_and_parameters_are_left_in_order(tmp_path):
    before = torch.backends.cudnn.allow_tf32
    poisoned(tmp_path, 3, math.nan, precision="float32" if before else "tf32")
    assert torch.backends.cudnn.allow_tf32 == before


# -- a full disk ----------------------------------------------------------------------------------


def full_from(count: int, act: Callable[..., None]) -> Callable[..., None]:
    """``act`` that finds no room from its ``count``-th call on."""
    left = count

    def limited(*arguments: object) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        act(*arguments)

    return limited


@pytest.mark.parametrize(
    ("count", "file", "step"),
    [(1, "last", None), (5, "last", 4), (11, "best", 10), (12, "last", 10), (13, "last", 11)],
)
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    tmp_path, monkeypatch, count, file, step
):
    """Epoch 1 has 11 steps: the 11th file is the best weights, the next their checkpoint."""
    small_run(tmp_path / "whole", "deep-residual")
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", full_from(count, checkpoint._write))
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            small_run(folder.path, "deep-residual", checkpoint_seconds=0.0)
    assert f"{getattr(folder, file)}: cannot be written" in str(caught.value)
    assert not list(folder.path.rglob("*.tmp"))
    held = folder.load_last()
    assert (held and held[1]["step"]) == step
    small_run(folder.path, "deep-residual")
    assert unlike(all_of(folder.path), all_of(tmp_path / "whole")) == []


def test_metrics_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    small_run(tmp_path / "whole")
    assert not small_run(tmp_path / "run", optimizer=interrupted_after(12, "sgd")).finished
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_from(1, os.fsync))  # no checkpoint is due before the row
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl: cannot be written \(No space"):
            small_run(tmp_path / "run")
    small_run(tmp_path / "run")
    assert unlike(all_of(tmp_path / "run"), all_of(tmp_path / "whole")) == []
