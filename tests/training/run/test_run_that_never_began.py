"""A recipe that cannot run leaves no folder, and one that was there as it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from drill.errors import CheckpointError
from drill.files import WriteError
from drill.training.run.folder import RunFolder
from drill.translation import run as translation_run
from tests.tiny_place import make_place
from tests.tiny_translation_place import set_by_command, write_pairs

MODEL = ("train", "tiny.toml", "--device", "cpu")
TRANSLATOR = ("train", "mt-demo", *set_by_command(), "--device", "cpu")

FAULTS = {
    "setting": ("--set", "encoder.impl=persistent"),  # found by the model's device: it is a GPU's
    "batch": ("--set", "training.batch_size=100000"),  # found by the loop: more columns than words
    "cutoffs": ("--set", "layer.name=adaptive", "--set", "layer.cutoffs=[5000]"),
    "corpus": ("--set", "data.corpus=nowhere"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(drill, *words: str) -> str:
    code, out, err = drill(*words)
    last = err.splitlines()[-1]
    assert (code, out, last[:7]) == (1, "", "drill: "), (code, out, err)
    return last


@pytest.mark.parametrize("fault", FAULTS)
def test_no_folder_stays(drill, fault):
    refused(drill, *MODEL, *FAULTS[fault], "--runs", "fresh/runs")
    assert not Path("fresh").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("command", [MODEL, TRANSLATOR], ids=["language_model", "translator"])
def test_nor_without_the_gpu_that_is_asked_for(drill, command):
    refused(drill, *command, "--device", "cuda", "--runs", "fresh/runs")
    assert not Path("fresh").exists()


@pytest.mark.parametrize("name", ["_ways", "keep_environment", "train_translator"])
def test_nor_does_one_of_a_translator(drill, monkeypatch, name):
    def fail(*_: object, **__: object) -> None:
        raise WriteError(Path("somewhere"), OSError(28, "No space left on device"))

    monkeypatch.setattr(translation_run, name, fail)
    refused(drill, *TRANSLATOR, "--runs", "fresh/runs")
    assert not Path("fresh").exists()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("held", ["", "recipe.toml", "vocabulary.json"])
def test_a_folder_that_was_there_stays_as_it_was(drill, place, tmp_path, fault, held):
    """Be it empty, or with what a killed run has left."""
    (tmp_path / "mine").mkdir()
    if held:
        (tmp_path / "mine" / held).write_text("[]")
    before = contents(tmp_path)
    refused(drill, *MODEL, *FAULTS[fault], "--runs", str(tmp_path), "--name", "mine")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("locked", [True, False])
def test_a_run_that_cannot_go_on_stays_as_it_was(drill, place, monkeypatch, locked):
    """A larger limit would be in recipe.toml, and a new life in environment.json."""

    def fail(*_: object, **__: object) -> None:
        raise CheckpointError("checkpoint.safetensors: is damaged")

    monkeypatch.setattr("drill.training.state.TrainingState.restore", fail)
    lock = place / "runs/tiny/.lock"
    if not locked:
        lock.unlink(missing_ok=True)
    before = contents(place / "runs/tiny")
    refused(drill, *MODEL, "--set", "training.epochs=7")
    assert contents(place / "runs/tiny") == before
    lock.touch()


def fails_after(folder: RunFolder, work: Callable[[], object]) -> None:
    with pytest.raises(KeyError, match="a fault"), folder.locked():
        _ = work(), {}["a fault"]


def test_a_checkpoint_that_finds_no_room_leaves_nothing_either(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "new")

    def save() -> None:
        folder.write_text(folder.recipe, "[data]\n")
        folder.last.parent.mkdir()

    fails_after(folder, save)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("written", ["metrics", "best", "last"])
def test_what_was_trained_stays_with_all_that_tells_of_it(tmp_path, written):
    folder = RunFolder(tmp_path / "new")
    path = getattr(folder, written)

    def train() -> None:
        folder.write_text(folder.recipe, "[data]\n")
        path.parent.mkdir(exist_ok=True)
        path.write_text("trained")

    fails_after(folder, train)
    assert folder.recipe.read_text() == "[data]\n"
    assert path.read_text() == "trained"


def test_so_does_what_was_trained_anew(tmp_path):
    """A checkpoint over an older one, of the same size."""
    folder = RunFolder(tmp_path / "old")
    folder.save_last({"a": torch.ones(2)}, {})
    folder.write_text(folder.recipe, "before\n")

    def train() -> None:
        folder.write_text(folder.recipe, "after\n")
        folder.save_last({"a": torch.zeros(2)}, {})

    fails_after(folder, train)
    assert folder.recipe.read_text() == "after\n"
