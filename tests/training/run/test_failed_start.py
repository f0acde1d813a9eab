"""A start that fails leaves no folder, and a folder that was there as it was."""

from pathlib import Path

import pytest
import torch

from drill.errors import CheckpointError
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import contents

MODEL = ("train", "tiny.toml", "--device", "cpu")
FAULTS = {
    "setting": ("--set", "encoder.impl=persistent"),  # found by the model's device: it needs a GPU
    "batch": ("--set", "training.batch_size=100000"),  # found by the loop: more streams than words
    "cutoffs": ("--set", "layer.name=adaptive", "--set", "layer.cutoffs=[5000]"),
    "bptt": ("--set", f"training.bptt={2**62}"),
    "corpus": ("--set", "data.corpus=nowhere"),
}


def fails(run_cli, *words: str) -> None:
    code, out, err = run_cli(*words)
    assert (code, out, err.splitlines()[-1][:7]) == (1, "", "drill: "), (code, out, err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_no_folder_stays_without_the_gpu_that_is_asked_for(run_cli):
    fails(run_cli, *MODEL, "--device", "cuda", "--runs", "fresh/runs")
    assert not Path("fresh").exists()


@pytest.mark.parametrize("left", ["no folder", "empty", "killed run"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_start_leaves_the_folder_as_it_was(run_cli, tmp_path, fault, left):
    runs = tmp_path / "fresh" / "runs"
    if left != "no folder":
        (runs / "mine").mkdir(parents=True)
    if left == "killed run":
        (runs / "mine" / "recipe.toml").write_text("[]")
    before = contents(tmp_path)
    fails(run_cli, *MODEL, *FAULTS[fault], "--runs", str(runs), "--name", "mine")
    assert contents(tmp_path) == before


def test_a_run_that_cannot_resume_stays_as_it_was(run_cli, workspace, monkeypatch):
    """Neither recipe.toml nor environment.json changes."""

    def fail(*_: object, **__: object) -> None:
        raise CheckpointError("checkpoint.safetensors: is damaged")

    monkeypatch.setattr("drill.training.state.TrainingState.restore", fail)
    before = contents(workspace / "runs/tiny")
    fails(run_cli, *MODEL, "--set", "training.epochs=7")
    assert contents(workspace / "runs/tiny") == before


@pytest.mark.parametrize("trained", [False, True])
def test_files_are_written_before_the_first_result(tmp_path, trained):
    folder = RunFolder(tmp_path / "runs" / "new")

    def fail() -> None:
        with folder.locked():
            folder.before_first_write(lambda: folder.write_text(folder.recipe, "[data]\n"))
            if trained:
                folder.append({"kind": "epoch", "epoch": 1})
            raise KeyError("a fault")

    with pytest.raises(KeyError, match="a fault"):
        fail()
    assert folder.recipe.exists() == folder.path.exists() == folder.path.parent.exists() == trained
