"""A translator that begins with the weights and the subwords of another run."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from drill.data import Subwords
from drill.errors import DataError, RunFolderError, SettingsError
from drill.tasks import train
from drill.training.run import checkpoint
from drill.training.settings import read_settings
from drill.translation.evaluate import translation_loss
from drill.translation.run import load_translator
from tests.helpers.language_models import differences, run_state, weights
from tests.helpers.tasks import stop
from tests.helpers.translators import small_settings
from tests.helpers.workspaces import pairs_workspace, text_workspace

STILL = [
    "training.max_steps=1",
    "training.average_checkpoints=1",
    "optimizer.lr=1e-12",
]  # weights stay


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """pairs/, runs/tiny and other/, the same language in other letters."""
    folder = pairs_workspace(tmp_path_factory.mktemp("workspace"))
    (folder / "other").mkdir()
    for path in (folder / "pairs").iterdir():
        turned = path.read_text().translate(str.maketrans("abcde", "ebcda"))
        (folder / "other" / path.name).write_text(turned)
    return folder


def started(*changes: str, start: Path | str = "runs/tiny"):
    return small_settings("data.corpus=other", f"init_from={start}", *changes)


@pytest.mark.parametrize("kind", ["best", "averaged"])
def test_first_weights_are_those_of_the_start_and_so_are_the_subwords(in_workspace, tmp_path, kind):
    base = tmp_path / "base"
    shutil.copytree("runs/tiny", base)
    (base / "averaged.safetensors").unlink(missing_ok=True)
    expected = weights(base / "best.safetensors")
    if kind == "averaged":
        expected = {name: tensor + 0.5 for name, tensor in expected.items()}
        checkpoint.save(base / "averaged.safetensors", expected, {"steps": [1, 2]})
    said: list[str] = []
    settings = started(*STILL, start=base)
    train(settings, tmp_path / "run", device="cpu", on_start=said.append)
    torch.testing.assert_close(weights(tmp_path / "run/best.safetensors"), expected)
    assert Subwords.load(tmp_path / "run/subwords.json") == Subwords.load(base / "subwords.json")
    assert said[-1].endswith(f"\nstarts from the {kind} weights of {base}, with its subwords")
    assert json.loads((tmp_path / "run/environment.json").read_text())["init_from"] == {
        "folder": str(base),
        "weights": kind,
        "weights_fingerprint": checkpoint.fingerprint_in(base / f"{kind}.safetensors"),
    }
    assert read_settings(tmp_path / "run/recipe.toml") == settings


def test_resumed_run_does_not_ask_for_its_start_again(in_workspace, tmp_path):
    shutil.copytree("runs/tiny", tmp_path / "base")
    settings = started(start=tmp_path / "base")
    train(settings, tmp_path / "whole", device="cpu")
    stop(settings, tmp_path / "run", 4)
    shutil.rmtree(tmp_path / "base")
    assert train(settings, tmp_path / "run", device="cpu").finished
    assert differences(run_state(tmp_path / "run"), run_state(tmp_path / "whole")) == []
    assert train(settings, tmp_path / "run", device="cpu").finished  # nothing is left to do


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["encoder.embedding_dim=16"], r"\(encoder.embedding_dim: 8 -> 16\)"),
        (["encoder.heads=1"], r"\(encoder.heads: 2 -> 1\)"),  # of the same shapes
        (["layer.name=tied"], r"layer.name: 'deep-residual' -> 'tied'"),
        (["layer.activation=tanh"], r"\(layer.activation: 'sigmoid' -> 'tanh'\)"),
        (["subwords.size=270"], r"\(subwords.size: 262 -> 270\)"),
        (["init_from=runs/nowhere"], "runs/nowhere: is not a run folder"),
        (["init_from=runs/young"], "init_from: runs/young has no best weights"),
        (["init_from=words/runs/tiny"], "words/runs/tiny: is a language model, not"),
    ],
)  # fmt: skip
def test_start_that_does_not_fit_is_named_before_a_text_is_read(
    in_workspace, monkeypatch, changes, fault
):
    if "words" in changes[0] and not Path("words").exists():
        Path("words").mkdir()
        text_workspace(Path("words").absolute())
    if "young" in changes[0]:
        Path("runs/young").mkdir()
        shutil.copy("runs/tiny/recipe.toml", "runs/young")
    monkeypatch.setattr("drill.translation.build.read_parallel_corpus", None)
    with pytest.raises((SettingsError, RunFolderError), match=fault):
        train(started(*changes), "runs/none", device="cpu")
    assert not Path("runs/none").exists()


def test_dropout_and_training_may_differ(in_workspace, tmp_path):
    changes = ["encoder.dropout=0.3", "layer.dropout=0.1", "layer.impl=reference"]
    train(started(*STILL, *changes), tmp_path / "run", device="cpu")
    base = load_translator("runs/tiny", device="cpu").model
    found = load_translator(tmp_path / "run", device="cpu").model
    torch.testing.assert_close(dict(found.named_parameters()), dict(base.named_parameters()))


@pytest.mark.parametrize(
    "counted", [["layer.name=adaptive", "layer.cutoffs=[50,150]"], ["layer.gate=frequency"]]
)
def test_counts_stay_those_that_the_weights_were_trained_for(counted, in_workspace, tmp_path):
    """The letters of the second text are other ones."""
    base, run = tmp_path / "base", tmp_path / "run"
    train(small_settings(*counted), base, device="cpu")
    train(started(*counted, *STILL, start=base), run, device="cpu")
    losses = []
    valid = load_translator(base, device="cpu").split("valid")[1]
    for folder in (base, run):
        losses.append(translation_loss(load_translator(folder, device="cpu").model, valid).loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    shutil.rmtree(base)
    assert train(started(*counted, *STILL, start=base), run, device="cpu").finished
    (run / "target_counts.json").unlink()
    with pytest.raises(DataError, match=r"target_counts\.json"):
        load_translator(run, device="cpu")
