"""From a translation recipe to a run folder and back."""

import json
import shutil
import sys

import pytest

from drill.data import DataError, Subwords
from drill.data.catalog import SPLITS
from drill.data.parallel.pairs import pairs_checksum
from drill.errors import RunFolderError, SettingsError
from drill.language_modeling.build import finetune_settings
from drill.language_modeling.run import load_language_model
from drill.tasks import train
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import has_ended
from drill.translation.inference import translate
from drill.translation.run import load_translator
from drill.translation.search.decoding import Search
from tests.helpers.translators import small_settings
from tests.helpers.workspaces import pairs_workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return pairs_workspace(tmp_path_factory.mktemp("workspace"))


def test_run_comes_back_as_it_was(in_workspace):
    run = load_translator("runs/tiny", device="cpu")
    assert run.subwords == Subwords.load("runs/tiny/subwords.json")
    assert not run.model.training
    assert run.model.layer.label_weight is run.model.transformer.target_embedding.weight
    test = [row for row in run.folder.rows() if row["kind"] == "test"][-1]
    assert run.weights == test["weights"]
    text, _ = run.split("test")
    found = translate(run.model, run.subwords, text.source, Search(beam_size=2))
    exact = [t[0].text == r for t, r in zip(found, text.target, strict=True)]
    with pytest.raises(TypeError, match="unexpected keyword argument 'beam'"):
        run.translate(text.source, beam=2)
    assert sum(exact) / len(exact) == test["test_exact"]
    environment = json.loads((in_workspace / "runs/tiny/environment.json").read_text())
    checksums = {split: pairs_checksum(run.split(split)[1]) for split in SPLITS}
    assert environment["pairs_of"] == checksums
    assert environment["vocabulary_size"] == len(run.subwords) == 262
    kernels = [kernel.split(" ")[0] for kernel in environment["kernels"]]
    assert kernels == ["residuals", "labels", "loss", "batches"]


def test_counted_layer_translates_without_the_training_text(in_workspace, run_cli, tmp_path):
    shutil.copytree("pairs", tmp_path / "pairs")
    counted = ["layer.name=adaptive", "layer.cutoffs=[50,150]", "training.epochs=1"]
    run = tmp_path / "run"
    train(small_settings(*counted, f"data.corpus={tmp_path / 'pairs'}"), run, device="cpu")
    shutil.rmtree(tmp_path / "pairs")
    words = ("translate", str(run), "--device", "cpu")
    code, out, err = run_cli(*words, stdin="abc\n")
    assert (code, out.count("\n")) == (0, 1), err
    counts = run / "target_counts.json"
    for damage in (lambda: counts.write_text("[1, 2]"), counts.unlink):
        damage()
        _, _, err = run_cli(*words, stdin="abc\n")
        assert err.startswith(f"drill: {counts}: ")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["encoder.heads=3"], "heads"),
        (["layer.name=sampled", "training.label_smoothing=0.1"], "label_smoothing"),
        (["layer.name=adaptive", "layer.cutoffs=[50,500]"], "cutoffs"),
        (["optimizer.lr=-1"], "optimizer.lr"),
        (["layer.bias=false", "training.unigram_bias=true"], "bias"),
    ],
)
def test_faults_of_settings_show_before_a_text_is_read(in_workspace, monkeypatch, changes, fault):
    monkeypatch.setattr("drill.translation.build.read_parallel_corpus", None)
    with pytest.raises(SettingsError, match=fault):
        train(small_settings(*changes), "runs/none", device="cpu")


def test_all_packages_that_are_missing_are_named_at_once(cli_error, monkeypatch):
    for name in ("tokenizers", "sacrebleu", "sacremoses", "num2words", "babel"):
        monkeypatch.setitem(sys.modules, name, None)
    packages = "pip install tokenizers sacrebleu sacremoses num2words babel"
    cli_error("train", "mt-demo", "--name", "bare", "--device", "cpu", key=packages)
    needs = "drill: evaluating runs/tiny needs tokenizers, sacrebleu, sacremoses; "
    cli_error("evaluate", "runs/tiny", key=needs)  # own pairs


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        (["training.epochs=1"], True),
        (["training.epochs=3"], False),
        (["training.epochs=3", "training.max_steps=1"], True),
        (["training.epochs=3", "training.max_steps=999"], False),
        (["training.epochs=3", "training.max_minutes=1e-6"], True),
        (["training.epochs=3", "training.max_minutes=999"], False),
    ],
)
def test_limit_that_comes_first_ends_a_run(in_workspace, limits, ended):
    assert has_ended(RunFolder("runs/tiny"), small_settings(*limits)) is ended


def test_changed_text_raises(in_workspace, tmp_path):
    shutil.copytree("pairs", tmp_path / "pairs")
    settings = small_settings(f"data.corpus={tmp_path / 'pairs'}")
    train(settings, tmp_path / "run", device="cpu")
    for language in ("en", "de"):
        path = tmp_path / "pairs" / f"test.{language}"
        path.write_text(path.read_text() + "a\n")
    with pytest.raises(RunFolderError, match="the text has changed"):
        train(settings, tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="was trained on other texts"):
        load_translator(tmp_path / "run", device="cpu").split("test")


def test_each_task_has_its_own_loader(in_workspace):
    with pytest.raises(RunFolderError, match="is a translator, not a language model"):
        load_language_model("runs/tiny")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        load_translator("runs/nothing")
    with pytest.raises(SettingsError, match="finetuning is for language models"):
        finetune_settings("runs/tiny")
