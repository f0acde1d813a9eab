"""From settings to a run folder and back: own text, end to end."""

import json
import math
import os
import platform
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from drill import __version__
from drill.data import DataError
from drill.errors import ArgumentError, CheckpointError, RunFolderError, SettingsError
from drill.language_modeling import build
from drill.language_modeling.build import finetune_settings, language_model
from drill.language_modeling.evaluation.perplexity import perplexity
from drill.language_modeling.run import LanguageModelRun, load_language_model
from drill.layers import LAYERS
from drill.tasks import train
from drill.training.device import pick_device
from drill.training.distributed import World
from drill.training.loop import Outcome
from drill.training.run.folder import RunFolder
from drill.training.settings import read_settings, recipe, resolve_settings
from tests.helpers.language_models import (
    differences,
    rows,
    run_state,
    small_settings,
    weights,
    write_texts,
)
from tests.helpers.processes import python
from tests.helpers.tasks import stop

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def own_texts(tmp_path) -> Path:
    """For tests that change a text."""
    return write_texts(tmp_path / "texts")


@pytest.fixture(scope="module")
def trained(text_folder) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRILL_COMMIT", "0123abc")
        train(small_settings(text_folder), text_folder.parent / "run", device="cpu", quiet=True)
    return text_folder.parent / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A finished run of ``small_settings(texts)``, trained once for all tests."""
    return shutil.copytree(trained, tmp_path / "run")


# -- a run and back -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_only_the_main_process_calls_on_start(tmp_path, text_folder, monkeypatch, first):
    monkeypatch.setattr(
        "drill.tasks.init_distributed", lambda device: nullcontext(World(rank=1 - first))
    )
    monkeypatch.setattr("drill.tasks.fit", lambda *_, **__: Outcome(False, 1, 0, None, None, 0.0))
    said: list[str] = []
    train(small_settings(text_folder), tmp_path / "run", device="cpu", on_start=said.append)
    assert len(said) == 2 * first


def test_train_logs_to_stderr_unless_quiet(tmp_path, text_folder, capsys, monkeypatch):
    monkeypatch.setattr("drill.training.progress.FIRST_AFTER", math.inf)  # on a slow machine too
    train(small_settings(text_folder), tmp_path / "run", device="cpu")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, lines[0].split()[0], lines[1].split()[0]) == ("", "training", "cpu")
    assert [line[:9] for line in lines if line.startswith("epoch")] == ["epoch 1/2", "epoch 2/2"]
    more = small_settings(text_folder, "training.epochs=3")
    train(more, tmp_path / "run", device="cpu", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_run_comes_back_as_it_was(text_folder, run):
    found = load_language_model(run, device="cpu")
    assert found.settings == small_settings(text_folder)
    assert found.model.layer.label_weight is found.model.encoder.embedding.weight
    assert {entry.name for entry in run.iterdir()} - {"tensorboard"} == {
        ".lock", "best.safetensors", "environment.json", "last", "metrics.jsonl", "recipe.toml",
        "vocabulary.json",
    }  # fmt: skip


SGD = ["optimizer.lr=2", "optimizer.max_grad_norm=1"]  # for 40 steps


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("ptb-zaremba-medium-full", SGD, marks=pytest.mark.slow),
        pytest.param("ptb-variational-drill", [*SGD, "layer.dropout=0.1"], marks=pytest.mark.slow),
        ("ptb-melis-tied", ["encoder.hidden_size=12", "optimizer.average_patience=1"]),
        (
            "ptb-rhn-tied",
            [*SGD, "encoder.hidden_size=8", "encoder.depth=2", "training.augmented=0.5"],
        ),
    ],
)
def test_further_encoders_train_and_resume(tmp_path, text_folder, name, changes):
    dropout = [f"encoder.dropout_{site}=0.05" for site in ("input", "output", "state")]
    changes = [*changes, *dropout, "training.compile=false", "training.epochs=3"]
    settings = small_settings(text_folder, *changes, name=name)
    assert train(settings, tmp_path / "whole", device="cpu", quiet=True).finished
    losses = [row["train_loss"] for row in rows(tmp_path / "whole") if row["kind"] == "epoch"]
    assert losses[-1] < losses[0] - 0.05
    stop(settings, tmp_path / "run", 15)
    train(settings, tmp_path / "run", device="cpu", quiet=True)
    assert differences(run_state(tmp_path / "run"), run_state(tmp_path / "whole")) == []
    run = load_language_model(tmp_path / "run", device="cpu")
    assert run.perplexity().loss == pytest.approx(run.folder.rows()[-1]["test_loss"], rel=1e-6)


def test_environment_of_a_run(run):
    found = json.loads((run / "environment.json").read_text())
    model = load_language_model(run, device="cpu").model
    assert found.pop("started").startswith("20")
    assert found.pop("device")
    assert isinstance(found.pop("command"), list)
    kernels = [kernel.split(" ")[0] for kernel in found.pop("kernels")]
    assert kernels == ["LSTM", "labels", "loss", "steps"]
    assert found == {
        "drill": __version__, "commit": "0123abc", "python": platform.python_version(),
        "torch": torch.__version__, "threads": torch.get_num_threads(), "precision": "float32",
        "tf32": False, "seed": 3, "world_size": 1, "working_folder": str(Path.cwd()),
        "parameters": model.parameter_count(), "vocabulary_size": model.layer.vocabulary_size,
    }  # fmt: skip


def test_seed_determines_the_run(tmp_path, text_folder, run):
    torch.rand(7)
    train(small_settings(text_folder), tmp_path / "same", device="cpu")
    train(small_settings(text_folder, "training.seed=4"), tmp_path / "other", device="cpu")
    assert differences(run_state(tmp_path / "same"), run_state(run)) == []
    assert rows(tmp_path / "other") != rows(run)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_trains_and_loads(tmp_path, text_folder, layer):
    own = {"adaptive": ["layer.cutoffs=[5, 20]"], "sampled": ["layer.samples=8"],
           "mixture": ["layer.experts=2", "encoder.output_size=6", "training.adversarial=0.01"],
           "mixtape": ["layer.gates=9", "encoder.output_size=6"],
           "doc": ["layer.experts=[1, 2]", "encoder.output_layers=2", "training.micro_batch=2"],
           "plif": ["layer.pieces=20", "layer.inner.name=deep-residual"]}  # fmt: skip
    changes = [f"layer.name={layer}", "training.epochs=1", *own.get(layer, [])]
    settings = small_settings(text_folder, *changes)
    outcome = train(settings, tmp_path / "run", device="cpu")
    run = load_language_model(tmp_path / "run", device="cpu")
    assert type(run.model.layer) is LAYERS[layer]
    assert perplexity(run.model, run.ids.valid, bptt=10) == outcome.valid


def assert_weights(run: LanguageModelRun, which: str) -> None:
    assert run.weights == which
    saved, prefix = weights(getattr(run.folder, which)), "model/" if which == "last" else ""
    for name, p in run.model.named_parameters():
        assert torch.equal(p, saved[f"{prefix}{name}"])


def test_before_the_first_validation_the_last_weights_are_loaded(tmp_path, text_folder):
    stop(small_settings(text_folder), tmp_path / "run", 3)
    assert_weights(load_language_model(tmp_path / "run", device="cpu"), "last")
    with pytest.raises(CheckpointError, match="best"):
        load_language_model(tmp_path / "run", "best", device="cpu")


def test_either_weights_on_request(run):
    for which in ("best", "last"):
        assert_weights(load_language_model(run, which, "cpu"), which)
    with pytest.raises(ArgumentError, match="weights"):
        load_language_model(run, "lats", "cpu")
    with pytest.raises(ArgumentError, match="split"):
        load_language_model(run, device="cpu").perplexity("tset")


# -- errors ---------------------------------------------------------------------------------------


def test_changed_text_raises(tmp_path, own_texts):
    settings = small_settings(own_texts)
    stop(settings, tmp_path / "run", 14)
    before = run_state(tmp_path / "run")
    path = own_texts / "train.txt"
    first, second, *rest = path.read_text().splitlines()
    for changed in ([second, first, *rest], [first, second, *rest, "w1 w2 w3"]):  # the same words
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises((DataError, RunFolderError), match="text has changed"):
            train(settings, tmp_path / "run", device="cpu")
    assert differences(run_state(tmp_path / "run"), before) == []
    path.write_text("\n".join([first, second, *rest]) + "\n")
    assert train(settings, tmp_path / "run", device="cpu").finished


def test_ids_of_a_run_are_those_of_its_text(tmp_path, own_texts):
    train(small_settings(own_texts, "training.epochs=1"), tmp_path / "run", device="cpu")
    with (own_texts / "train.txt").open("a") as stream:
        stream.write("w1 w2 w3\n")
    with pytest.raises(DataError, match="was trained on another text"):
        _ = load_language_model(tmp_path / "run", device="cpu").ids


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "cpu:x"])
def test_unknown_device_raises(name):
    with pytest.raises(SettingsError, match=f"device {name}: cannot be used here"):
        pick_device(name)
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("rank", "index"), [(None, 0), ("3", 3)])
def test_cuda_is_the_gpu_of_the_local_rank(monkeypatch, rank, index):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    zeros = torch.zeros(1)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: zeros)
    assert pick_device("cuda") == torch.device("cuda", index)
    assert pick_device("cuda:1") == torch.device("cuda:1")


# -- finetuning -----------------------------------------------------------------------------------


def test_settings_of_finetuning(tmp_path, text_folder):
    changes = ["training.bptt=10", "optimizer.lr=7", "optimizer.max_grad_norm=0.5"]
    changes += ["optimizer.map_lr_scale=0.5"]
    settings = small_settings(text_folder, *changes, "training.max_minutes=60", "training.epochs=1")
    train(settings, tmp_path / "run", device="cpu")
    found = finetune_settings(tmp_path / "run")
    assert found.recipe == "ptb-drill-2-finetune"
    assert found.init_from == str(tmp_path / "run")
    optimizer = {"name": "asgd", "lr": 7.0, "weight_decay": 1.2e-6, "max_grad_norm": 0.5}
    optimizer |= {"map_lr_scale": 0.5}
    assert found.optimizer == optimizer
    same = (settings.data, settings.encoder, settings.layer)
    assert (found.data, found.encoder, found.layer) == same
    changed = {"length_seed": 331, "length_cap": 20, "patience": 5, "validate_first": True}
    changed["max_minutes"] = None  # it has the time it takes
    assert found.training == {**settings.training, **changed}
    (tmp_path / "f.toml").write_text(found.to_toml())
    assert read_settings(tmp_path / "f.toml") == found


def test_finetuning_starts_from_the_best_weights_and_resumes_without_them(tmp_path, run):
    given = load_language_model(run, device="cpu")
    before = perplexity(given.model, given.ids.valid, bptt=10)
    settings = finetune_settings(run)
    train(settings, tmp_path / "whole", device="cpu")
    first = rows(tmp_path / "whole")[0]
    assert (first["epoch"], first["valid_loss"]) == (0, before.loss)
    assert all(row["averaged"] for row in rows(tmp_path / "whole")[1:-1])
    stop(settings, tmp_path / "fine", 14)
    shutil.rmtree(run)
    assert train(settings, tmp_path / "fine", device="cpu").finished
    assert differences(run_state(tmp_path / "fine"), run_state(tmp_path / "whole")) == []


def test_finetuning_needs_weights_and_the_same_words(tmp_path, own_texts, run):
    settings = finetune_settings(run)
    with (own_texts / "train.txt").open("a") as stream:
        stream.write("another word\n")
    elsewhere = settings.changed(data={"corpus": str(own_texts)})
    with pytest.raises(DataError, match="was trained with another vocabulary"):
        train(elsewhere, tmp_path / "fine", device="cpu")
    os.remove(run / "best.safetensors")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        train(settings, tmp_path / "fine", device="cpu")


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"optimizer": {"name": "adamw"}}, "adamw"),
        ({"optimizer": {"name": "muon"}}, "muon"),
        ({"optimizer": {"name": "sgd"}, "training": {"untie_at": 0.5}}, "untie_at"),
    ],
)
def test_what_averaged_sgd_does_not_continue_is_not_finetuned(tmp_path, text_folder, tables, key):
    (tmp_path / "recipe.toml").write_text(resolve_settings(tables).to_toml())
    with pytest.raises(SettingsError, match=key):
        finetune_settings(tmp_path)


def test_finetuning_resumes_whatever_path_its_start_has(tmp_path, text_folder, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = finetune_settings("run").changed(training={"epochs": 1})
    assert settings.init_from == str(run)
    train(settings, "tuned", device="cpu")
    monkeypatch.chdir(text_folder)
    settings = finetune_settings(os.path.relpath(run)).changed(training={"epochs": 1})
    assert train(settings, tmp_path / "tuned", device="cpu").finished
    shutil.copytree(run, tmp_path / "other")
    settings = finetune_settings(tmp_path / "other").changed(training={"epochs": 1})
    with pytest.raises(RunFolderError, match="init_from: "):
        train(settings, tmp_path / "tuned", device="cpu")


def test_lost_vocabulary_is_named(text_folder, run):
    (run / "vocabulary.json").unlink()
    for use in (
        load_language_model,
        lambda folder, device: train(small_settings(text_folder), folder, device=device),
    ):
        with pytest.raises(DataError, match=r"vocabulary\.json"):
            use(run, device="cpu")


def test_damaged_weights_are_named_with_those_that_are_left(run):
    folder = RunFolder(run)
    folder.best.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="--weights last"):
        load_language_model(run, device="cpu")
    assert load_language_model(run, "last", device="cpu").weights == "last"
    folder.last.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="--weights best"):
        load_language_model(run, "last", device="cpu")


@pytest.mark.parametrize(
    "changes",
    ["optimizer.lr=-1", "layer.dropout=2", "layer.name=doc layer.experts=[1,2]",
     "encoder.layers=0"],
)  # fmt: skip
def test_settings_are_checked_before_a_text_is_fetched(tmp_path, changes, monkeypatch):
    monkeypatch.setattr(build, "read_corpus", None)
    key = changes.split()[-1].partition("=")[0]
    with pytest.raises(SettingsError, match=f"^{key}: must be "):
        train(recipe("ptb-drill-2", changes.split()), tmp_path / "run", device="cpu")


@pytest.mark.slow
def test_dry_run_needs_neither_memory_nor_the_compiler():
    """Every layer over a million words, in a moment."""
    code = (
        "import sys, drill.language_modeling.build, drill.layers\n"
        "from drill.training.settings import recipe\n"
        "for name in drill.layers.LAYERS:\n"
        "    changes = ['layer.cutoffs=[100, 1000]'] if name == 'adaptive' else []\n"
        "    settings = recipe('demo-tied', [f'layer.name={name}', *changes])\n"
        "    drill.language_modeling.build.dry_run(settings)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert python("-c", code) == "False\n"


def test_embedding_starts_small_and_every_row_is_trained(text_folder):
    """No row is a padding row: on current PyTorch -1 would mean the last one."""
    changes = [f"encoder.dropout_{site}=0" for site in ("embedding", "input")]
    settings = small_settings(text_folder, *changes)
    _, vocabulary = build.corpus(settings)
    model = language_model(settings, vocabulary)
    weight = model.encoder.embedding.weight
    assert 0.09 < float(weight.detach().abs().max()) <= 0.1
    ids = torch.arange(len(vocabulary))[:, None]
    model.encoder(ids).output.sum().backward()
    assert (weight.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("layer", ["tied", "mixture"])
def test_bias_and_norms_may_start_from_the_frequencies_of_words(text_folder, layer):
    changes = ["training.unigram_bias=true", "training.unigram_norms=0.3", f"layer.name={layer}"]
    settings = small_settings(text_folder, *changes)
    _, vocabulary = build.corpus(settings)
    model = language_model(settings, vocabulary)
    counts = torch.tensor(vocabulary.counts)
    seen = counts.clamp(min=1)
    torch.testing.assert_close(model.layer.bias.detach().exp(), seen / seen.sum())
    norms = model.encoder.embedding.weight.detach().norm(dim=1)
    torch.testing.assert_close(norms, 0.3 * torch.log1p(seen))


def test_finished_run_without_its_checkpoint_is_not_trained_over(text_folder, run):
    before = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "last")
    with pytest.raises(RunFolderError, match="last/ is gone"):
        train(small_settings(text_folder), run, device="cpu")
    assert (run / "metrics.jsonl").read_bytes() == before
