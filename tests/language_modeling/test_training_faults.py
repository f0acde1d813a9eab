"""What can go wrong in a run: NaN, a full disk. Nothing learnt before is lost."""

import math
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from drill.errors import Diverged
from drill.files import WriteError
from drill.kernels.runtime import stalls
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder
from tests.helpers.files import disk_full
from tests.helpers.language_models import (
    OPTIMIZERS,
    acting,
    after,
    differences,
    rows,
    run_state,
    small_model,
    small_run,
    uninterrupted_run,
    weights,
)

EPOCH = 11  # steps of an epoch of ``small_run``


def poisoned(path: Path, step: int, value: float, name: str = "layer.bias", **options) -> str:
    """Train with one number of a parameter set to ``value`` after ``step``; returns the message."""
    model = small_model("deep-residual")
    parameter = dict(model.named_parameters())[name]

    def poison() -> None:
        parameter.data.view(-1)[3] = value

    with pytest.raises(Diverged) as caught:
        small_run(path, optimizer=after(step, OPTIMIZERS["sgd"](), poison), model=model, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (math.nan, "layer.bias"),
        (math.inf, "encoder.lstms.0.weight_hh_l0"),
        (-math.inf, "layer.bias"),
    ],
)
def test_last_good_checkpoint_stays_and_is_named(tmp_path, value, name):
    message = poisoned(tmp_path, 15, value, name, checkpoint_seconds=0.0)
    folder = RunFolder(tmp_path)
    assert "before step 15 of epoch 2, at lr 5" in message
    assert f"what was saved before is in {folder.path}" in message
    tensors, numbers = folder.load_last()
    assert numbers["step"] == 14
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    assert all(tensor.isfinite().all() for tensor in floats)
    assert all(tensor.isfinite().all() for tensor in weights(folder.best).values())


@pytest.mark.parametrize(("value", "epochs"), [(math.nan, 2), (math.inf, 1)])
def test_last_step_of_an_epoch_is_checked_too(tmp_path, value, epochs):
    """The loss of the epoch is finite, the weights after it are not."""
    message = poisoned(tmp_path, EPOCH, value, epochs=epochs)
    assert f"before step {EPOCH} of epoch 1" in message
    assert not RunFolder(tmp_path).last.exists()
    assert not RunFolder(tmp_path).best.exists()
    assert rows(tmp_path) == []


@pytest.mark.parametrize(("log_every", "step"), [(None, 4), (100, EPOCH)])
def test_nan_is_found_with_the_next_row_of_metrics(tmp_path, log_every, step):
    message = poisoned(tmp_path, 3, math.nan, log_every=log_every)
    assert f"before step {step} of epoch 1" in message


def test_stalled_kernel_is_not_blamed_on_the_learning_rate(tmp_path, monkeypatch):
    flag = torch.ones(1, dtype=torch.int32)
    monkeypatch.setattr(stalls, "_flags", {0: flag})
    message = poisoned(tmp_path, 15, math.nan, checkpoint_seconds=0.0)
    assert message.startswith(f"{stalls.STALLED}, before step 15 of epoch 2")
    assert not flag.any()
    assert poisoned(tmp_path, 1, math.nan).startswith("the loss became nan before step 1")
    small_run(tmp_path, "deep-residual")
    assert differences(run_state(tmp_path), uninterrupted_run(small_run, "deep-residual")) == []


@pytest.mark.parametrize(
    ("count", "file", "step"),
    [(1, "last", None), (5, "last", 4), (11, "best", 10), (12, "last", 10), (13, "last", 11)],
)
def test_full_disk_is_named_and_the_run_resumes_when_there_is_room(
    tmp_path, monkeypatch, count, file, step
):
    """Epoch 1 has 11 steps: the 11th file is the best weights, the next their checkpoint."""
    folder = RunFolder(tmp_path)
    with monkeypatch.context() as patch:
        fill = partial(patch.setattr, os, "fsync", disk_full)  # from that checkpoint on
        patch.setattr(checkpoint, "atomic_write", acting(checkpoint.atomic_write, count, fill))
        with pytest.raises(WriteError, match="No space left on device") as caught:
            small_run(folder.path, "deep-residual", checkpoint_seconds=0.0)
    assert f"{getattr(folder, file)}: cannot be written" in str(caught.value)
    assert not list(folder.path.rglob("*.tmp"))
    last = folder.load_last()
    assert (last and last[1]["step"]) == step
    small_run(folder.path, "deep-residual")
    assert differences(run_state(folder.path), uninterrupted_run(small_run, "deep-residual")) == []
