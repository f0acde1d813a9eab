"""Two processes train what one does; one that dies is restarted and loses nothing."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from drill.data import PairBatches
from drill.errors import CheckpointError, SettingsError
from drill.training.distributed import World
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import (
    assert_close_rows,
    differences,
    interrupted_after,
    rows,
    run_state,
    small_run,
    weights,
)
from tests.helpers.processes import ROOT, python, two_processes
from tests.helpers.translators import small_data, small_optimizer, small_training
from tests.helpers.workspaces import RECIPE
from tests.training.workers import EXACT, MANY_BATCHES, PLAIN, TRANSLATOR


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Path:
    """The folder in which two processes have done what tests/training/workers.py says."""
    folder = tmp_path_factory.mktemp("parallel")
    begun = interrupted_after(13, "nt-asgd")
    assert not small_run(folder / "one, then two", "deep-residual", begun, **EXACT).finished
    stopping = interrupted_after(5, small_optimizer())
    alone = folder / "one, then two translators"
    assert not small_training(alone, optimizer=stopping, **MANY_BATCHES).finished
    two_processes("--max-restarts", 3, "-m", "tests.training.workers", folder)
    return folder


@pytest.fixture(scope="module")
def found(launched) -> dict:
    return json.loads((launched / "found.json").read_text())


def assert_close_runs(path: Path, other: Path, atol: float = 1e-12) -> None:
    """The same metrics, weights and averages; sums over two processes are rounded otherwise."""
    assert_close_rows(path, other, rel=1e-10)
    for file in ("best.safetensors", "last/checkpoint.safetensors"):
        mine, theirs = weights(path / file), weights(other / file)
        for name, expected in theirs.items():
            if not name.startswith(("random/", "nll/")):  # what every process has for itself
                torch.testing.assert_close(mine[name], expected, rtol=1e-10, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("layer", PLAIN)
def test_two_processes_train_what_one_does(launched, found, tmp_path, layer):
    assert found["size"] == 2
    small_run(tmp_path, layer, "nt-asgd", **EXACT)
    assert {row.get("averaged") for row in rows(tmp_path)} >= {True, False}
    assert_close_runs(launched / layer, tmp_path)


@pytest.mark.slow
def test_micro_batches_of_two_processes_too(launched):
    assert_close_runs(launched / "micro", launched / "deep-residual")


@pytest.mark.slow
@pytest.mark.parametrize("batches", [2, 4])
def test_two_processes_train_the_translator_that_one_does(launched, tmp_path, batches):
    """The loss is divided by the tokens of the whole step, wherever they are."""
    small_training(tmp_path, gradient_accumulation_steps=batches, **TRANSLATOR)
    # Biases of keys change nothing: their gradients are rounding, which Adam makes larger.
    assert_close_runs(launched / f"translator {batches}", tmp_path, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one, then two translators", "two, then one translator"])
def test_a_translator_goes_on_with_another_number_of_processes(launched, tmp_path, name):
    """In the middle of an epoch: no pair is skipped and none comes twice."""
    batches = len(PairBatches(small_data().train, MANY_BATCHES["max_tokens"]))
    assert batches % 2 == 1  # the last turn of two has one batch for both
    if name.startswith("two"):
        last = RunFolder(launched / name).load_last()[1]
        assert (last["epoch"], last["position"]) == (1, 12)
        assert batches > 12
        small_training(launched / name, **MANY_BATCHES)
    small_training(tmp_path, **MANY_BATCHES)
    assert_close_runs(launched / name, tmp_path, atol=1e-9)


@pytest.mark.slow
def test_processes_of_a_translator_stop_together_and_resume(launched, found):
    assert found["stopped after a validation"] == [False, 1]
    assert found["translator stopped"] == [False, 6]  # asked after 5, agreed on at a multiple of 3
    whole = run_state(launched / "translator 2")
    for name in ("translator stopped after a validation", "stopped translator"):
        assert differences(run_state(launched / name), whole) == []


@pytest.mark.slow
def test_all_processes_have_the_same_weights_and_unused_parameters_are_fine(found):
    assert found["alike"] == [True]
    assert 0.0 < found["sampled"] < 10.0


@pytest.mark.slow
def test_every_process_draws_other_dropout_masks(launched):
    last = weights(launched / "whole" / "last" / "checkpoint.safetensors")
    assert not torch.equal(last["random/cpu/0"], last["random/cpu/1"])


@pytest.mark.slow
def test_a_batch_or_an_update_that_cannot_be_shared_is_an_error(found):
    assert "training.batch_size" in found["odd"]
    assert "a multiple of 2" in found["odd"]
    assert "training.gradient_accumulation_steps" in found["odd step"]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_of_them_and_the_run_goes_on(launched, found):
    finished, step = found["stopped"]
    assert not finished
    assert step == 9  # asked after 7, agreed on at a multiple of 3
    assert differences(run_state(launched / "stopped"), run_state(launched / "whole")) == []


@pytest.mark.slow
def test_a_process_that_dies_is_restarted(launched):
    assert int((launched / "restarts").read_text()) >= 1
    assert differences(run_state(launched / "died"), run_state(launched / "whole")) == []


@pytest.mark.slow
def test_a_run_may_go_on_with_another_number_of_processes(launched, tmp_path, caplog):
    """Without dropout nothing is random, so it even comes to the same."""
    assert_close_runs(launched / "one, then two", launched / "deep-residual")
    shutil.copytree(launched / "two, then one", tmp_path / "run")
    assert RunFolder(tmp_path / "run").load_last()[1]["world"] == 2
    with caplog.at_level(logging.WARNING, "drill"):
        assert small_run(tmp_path / "run", "deep-residual", "nt-asgd", **EXACT).finished
    assert [record.getMessage() for record in caplog.records] == [
        "saved by 2 processes and resumed with 1: random numbers start again"
    ]
    assert_close_runs(tmp_path / "run", launched / "deep-residual")


WAITING = """
import os, sys, time
from pathlib import Path
import torch
from drill.training.distributed import init_distributed
folder = Path(sys.argv[1])
(folder / os.environ["RANK"]).touch()
while len(list(folder.iterdir())) < 2:  # until both have imported torch
    time.sleep(0.05)
with init_distributed(torch.device("cpu"), timeout=4.0) as mine:
    if mine.is_main:
        time.sleep(6.0)
    mine.barrier()
    known = mine.broadcast_object("learnt" if mine.is_main else None)
    os.write(1, f"{known}\\n".encode())  # at once: the other process writes here, too
"""


@pytest.mark.slow
def test_what_the_first_process_does_alone_may_take_longer_than_what_all_do(tmp_path):
    """It learns subwords and translates the test text, for hours where they are large."""
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "begun").mkdir()
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # not that of torchrun
    out = two_processes(tmp_path / "waiting.py", tmp_path / "begun", **own_store)
    assert out.split() == ["learnt"] * 2


def test_processes_that_read_different_checkpoints_are_an_error(tmp_path, monkeypatch):
    """As from folders that are not shared; they would wait for each other until the time is up."""
    small_run(tmp_path, optimizer=interrupted_after(13, "sgd"))
    monkeypatch.setattr(World, "all_gather", lambda self, tensor: [tensor, torch.tensor(-1)])
    with pytest.raises(CheckpointError, match="different checkpoints"):
        small_run(tmp_path)


def test_processes_split_the_batch_in_order():
    data = torch.arange(24).view(2, 6, 2)
    parts = [World(rank, 3).local_batch(data) for rank in range(3)]
    assert torch.equal(torch.cat(parts, dim=1), data)
    assert [World(rank, 3).is_main for rank in range(3)] == [True, False, False]
    with pytest.raises(SettingsError, match="batch_size: 6 cannot be divided among 4 processes"):
        World(1, 4).local_batch(data)


@pytest.mark.slow
def test_the_documented_command_trains_with_two_processes(tmp_path):
    lines = (" ".join(f"w{(i * k) % 7}" for k in range(1, 7)) for i in range(100))
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "small.toml").write_text(RECIPE.replace('"text"', '"text.txt"'))
    page = (ROOT / "docs" / "language-models.md").read_text()
    (shown,) = (line.split() for line in page.splitlines() if line.startswith("    torchrun "))
    words = " ".join(shown).replace("--nproc-per-node 4", "--standalone --nproc-per-node 2")
    command = words.replace("ptb-drill-4", "small.toml --device cpu").split()
    assert command[-6:] == ["-m", "drill", "train", "small.toml", "--device", "cpu"]
    options = {"cwd": tmp_path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    out = python("-m", "torch.distributed.run", *command[1:], **options)
    assert out.count("runs/small: valid") == 1  # the first process alone speaks
    environment = json.loads((tmp_path / "runs/small/environment.json").read_text())
    assert environment["world_size"] == 2
