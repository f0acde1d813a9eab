"""A start that fails or is stopped leaves no new folder, and one that was there as it was."""

import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from drill import tasks
from drill.errors import CheckpointError
from tests.helpers.files import contents
from tests.helpers.tasks import LM, MT
from tests.helpers.translators import set_by_command

pytestmark = pytest.mark.usefixtures("default_ctrl_c")
MODEL = ("train", "tiny.toml", "--device", "cpu")
COMMANDS = {LM: MODEL, MT: ("train", "mt-demo", *set_by_command(), "--device", "cpu")}
FAULTS = {
    "setting": ("--set", "encoder.impl=persistent"),  # found by the model's device: it needs a GPU
    "batch": ("--set", "training.batch_size=100000"),  # found by the loop: more streams than words
    "cutoffs": ("--set", "layer.name=adaptive", "--set", "layer.cutoffs=[5000]"),
    "bptt": ("--set", f"training.bptt={2**62}"),
    "corpus": ("--set", "data.corpus=nowhere"),
    **({} if torch.cuda.is_available() else {"gpu": ("--device", "cuda")}),
}
NOTHING = "stopped before training had anything to save"


@pytest.mark.parametrize("left", ["no folder", "empty", "killed run"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_start_leaves_the_folder_as_it_was(run_cli, tmp_path, fault, left):
    runs = tmp_path / "fresh" / "runs"
    if left != "no folder":
        (runs / "mine").mkdir(parents=True)
    if left == "killed run":
        (runs / "mine" / "recipe.toml").write_text("[]")
    before = contents(tmp_path)
    code, out, err = run_cli(*MODEL, *FAULTS[fault], "--runs", str(runs), "--name", "mine")
    assert (code, out, err.splitlines()[-1][:7]) == (1, "", "drill: "), err
    assert contents(tmp_path) == before


# -- Ctrl-C --------------------------------------------------------------------------------------


def ctrl_c(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
@pytest.mark.parametrize("task", COMMANDS)
def test_ctrl_c_before_the_first_step_removes_the_folder(run_cli, monkeypatch, task, quiet):
    for name in ("build_optimizer", "record_start"):
        with monkeypatch.context() as patch:
            patch.setattr(tasks, name, ctrl_c)
            code, out, err = run_cli(*COMMANDS[task], "--runs", "fresh/runs", *quiet)
        assert (code, out, err.splitlines()[-1]) == (130, "", NOTHING)
        assert not Path("fresh").exists()


def test_ctrl_c_leaves_other_files(run_cli, workspace, monkeypatch):
    """A folder that was there is not emptied, nor one next to which another run has come."""
    monkeypatch.setattr(tasks, "record_start", ctrl_c)
    (workspace / "mine" / "here").mkdir(parents=True)
    (workspace / "mine" / "here" / "vocabulary.json").write_text("[]")
    for name in ("here", "new"):
        assert run_cli(*MODEL, "--runs", "mine", "--name", name)[0] == 130
    assert [path.name for path in (workspace / "mine").iterdir()] == ["here"]
    assert (workspace / "mine" / "here" / "vocabulary.json").exists()


damaged = Mock(side_effect=CheckpointError("checkpoint.safetensors: is damaged"))


@pytest.mark.parametrize(
    ("fault", "status", "said"), [(ctrl_c, 130, "stopped; runs/tiny "), (damaged, 1, "drill: ")]
)
def test_a_run_that_does_not_resume_stays_as_it_was(
    run_cli, workspace, monkeypatch, fault, status, said
):
    """Neither recipe.toml nor environment.json changes."""
    monkeypatch.setattr("drill.training.state.TrainingState.restore", fault)
    before = contents(workspace / "runs/tiny")
    code, out, err = run_cli(*MODEL, "--set", "training.epochs=7")
    assert (code, out) == (status, "")
    assert err.splitlines()[-1].startswith(said)
    assert contents(workspace / "runs/tiny") == before
