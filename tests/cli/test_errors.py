"""Faults as sentences, of one run among several too; runs told which kernels to use."""

import io
import os
import shutil
from contextlib import nullcontext
from threading import Thread

import numpy as np
import pytest
import torch

from drill.cli import errors as faults
from drill.cli.errors import sentence
from drill.kernels.runtime.nvrtc import DriverError
from drill.language_modeling.run import load_run
from drill.training.distributed import World
from drill.training.run.folder import RunFolder
from drill.training.run.weights import by_any_kernels
from drill.training.settings import does_not_run, recipe
from drill.translation.run import load_translation
from tests.tiny_place import RECIPE, make_place

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "the memory is too small (can't allocate memory: you tried to allocate 8 bytes); take "
            "a smaller model or training.batch_size",
        ),
        (MemoryError(), "the memory is too small (no more of it); take a smaller model"),
        (
            torch.OutOfMemoryError("CUDA out of memory.\nmore"),
            "the GPU's memory is too small (CUDA out of memory.); take a smaller model",
        ),
        (
            DriverError("CUDA, launch: too many blocks (error 720)"),
            "the GPU refuses work (CUDA, launch: too many blocks (error 720)); run it again on a "
            "free GPU",
        ),
        (FileNotFoundError(2, "No such file", "mine.txt"), "mine.txt: No such file"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence(fault, words):
    assert sentence(fault).startswith(words)


@pytest.mark.parametrize("fault", [RuntimeError("a size of 3"), AssertionError(), KeyError("key")])
def test_what_nobody_can_mend_but_us_is_none(fault):
    assert sentence(fault) is None


def test_memory_that_is_not_there_is_told_of_in_one_line(drill, monkeypatch):
    """As torch asks for it, without asking this machine for as much."""

    def greedy(*given, **options):
        raise RuntimeError(f"[enforce fail] {faults.CPU_MEMORY}can't allocate memory: 9 bytes")

    monkeypatch.setattr("drill.tasks.language_model", greedy)
    code, out, err = drill("train", "tiny.toml", "--name", "large", *CPU)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("drill: the memory is too small (can't allocate memory")


def test_faults_of_later_runs_are_told_before_the_first_is_trained(drill, place):
    (place / "lost.toml").write_text(RECIPE.replace('corpus = "text"', 'corpus = "lost"'))
    wrong = RECIPE.replace("lr = 5.0", 'name = "adamw"\nbeta1 = 1.5')
    (place / "wrong.toml").write_text(wrong)
    few = ("--set", "training.epochs=1", "--runs", "some", *CPU)
    code, out, err = drill("train", "tiny.toml", "lost.toml", "wrong.toml", *few)
    assert code == 1
    assert out.startswith("some/tiny: valid")
    lines = err.splitlines()
    told = [i for i, line in enumerate(lines) if line.startswith("drill: ")]
    began = next(i for i, line in enumerate(lines) if "epoch" in line and "drill: " not in line)
    assert lines[told[0]].startswith("drill: lost: is neither")
    assert lines[told[1]] == "drill: [optimizer]: AdamW: beta1 lies in [0, 1), not 1.5"
    assert told[1] < began
    assert lines[-1] == "drill: 2 of 3 runs failed: some/lost, some/wrong"
    assert not (place / "some" / "lost").exists()


def test_translators_are_looked_at_beforehand_too(drill, place):
    (place / "pairs.toml").write_text(
        'task = "translation"\n[data]\ncorpus = "nowhere"\n[training]\nepochs = 1\n'
    )
    few = ("--set", "training.epochs=1", "--runs", "both", "-q", *CPU)
    code, out, err = drill("train", "tiny.toml", "pairs.toml", *few)
    assert code == 1
    assert out.startswith("both/tiny: valid")
    assert err.splitlines()[0].startswith("drill: nowhere: ")


def test_folders_of_other_runs_and_missing_starts_are_told_beforehand(drill, place):
    """But for a start that an earlier run of the same command makes."""
    (place / "from.toml").write_text('start = "two/tiny"\n' + RECIPE)
    (place / "lost.toml").write_text('start = "two/none"\n' + RECIPE)
    (place / "two" / "taken").mkdir(parents=True)
    (place / "two" / "taken" / "letter.txt").write_text("dear\n")
    (place / "taken.toml").write_text(RECIPE)
    few = ("--set", "training.epochs=1", "--runs", "two", *CPU)
    names = ("tiny.toml", "from.toml", "lost.toml", "taken.toml")
    code, out, err = drill("train", *names, *few)
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == ["two/tiny", "two/from"]
    lines = err.splitlines()
    assert lines[0].startswith("drill: two/none: holds no run")
    assert lines[1].startswith("drill: two/taken: holds no run, but letter.txt")
    assert lines[-1] == "drill: 2 of 4 runs failed: two/lost, two/taken"
    changed = ("--set", "layer.depth=1", "--set", "training.epochs=1", "--runs", "two", *CPU)
    code, out, err = drill("train", "taken.toml", "tiny.toml", *changed, "-q")
    assert (code, out) == (1, "")
    assert "drill: two/tiny: holds a run with other settings" in err


def test_several_processes_stay_in_step(drill, place, monkeypatch):
    """One alone must not leave out a run that the others begin."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("drill.cli.train.refuse_faults", lambda *given: pytest.fail("looked"))
    monkeypatch.setattr("drill.tasks.world", lambda place: nullcontext(World()))
    (place / "gone.toml").write_text(RECIPE.replace('corpus = "text"', 'corpus = "lost"'))
    code, out, err = drill("train", "gone.toml", "tiny.toml", "--runs", "ranks", *CPU)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("drill: lost: is neither")


def test_a_batch_too_large_for_the_text_is_told_by_the_name_of_its_setting(drill):
    for name in ("batch_size", "valid_batch_size", "test_batch_size"):
        code, _, err = drill(
            "train", "tiny.toml", "--name", name, "--set", f"training.{name}=99999", *CPU
        )
        assert code == 1
        assert err.splitlines()[-1].endswith(f"take a smaller training.{name} or a longer text")
        assert ("too few to learn" in err) is (name != "batch_size")


def test_patience_is_named_as_what_ended_a_run(drill):
    still = ("--set", "optimizer.lr=100", "--set", "training.patience=0")
    code, out, _ = drill(
        "train", "tiny.toml", "--name", "still", "--set", "training.epochs=90", *still, *CPU
    )
    assert code == 0
    assert out.strip().endswith(", ended by training.patience)")


def test_losses_go_into_a_pipe(drill, place):
    pipe, read = place / "pipe", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    code, _, err = drill(
        "evaluate", "runs/tiny", "--split", "test", "--losses", str(pipe), "-q", *CPU
    )
    reader.join(30)
    assert (code, err) == (0, "")
    assert np.load(io.BytesIO(read[0])).ndim == 1


def test_kernels_of_wrapped_layers_and_of_translators_may_be_others_too(monkeypatch):
    given = ["encoder.impl=graph", "layer.over.encoder=triton"]
    mixture = recipe("ptb-mos-drill", given)
    used = by_any_kernels(mixture)
    assert (used.encoder["impl"], used.layer["over"]["encoder"]) == ("auto", "auto")
    assert mixture.layer["over"]["encoder"] == "triton"  # what was asked for stays
    assert mixture.differences(recipe("ptb-mos-drill")) == []
    slow = recipe("ptb-mos-drill", ["encoder.impl=cudnn", "layer.over.encoder=reference"])
    assert by_any_kernels(slow) == slow  # every machine has these
    translator = recipe("mt-demo", ["encoder.impl=triton"])
    assert by_any_kernels(translator).encoder["impl"] == "auto"


@pytest.mark.parametrize(
    ("name", "error", "key"),
    [
        ("ptb-drill-4", "lstm: impl graph does not run here: no GPU; use auto", "encoder.impl"),
        ("ptb-drill-4", 'DeepResidual: encoder="triton": no GPU', "layer.encoder"),
        ("ptb-mos-drill", 'DeepResidual: encoder="triton": no GPU', "layer.over.encoder"),
    ],
)
def test_kernels_that_do_not_run_here_are_told_with_a_setting_that_there_is(name, error, key):
    words = str(does_not_run(recipe(name), ValueError(error)))
    assert words == f"the recipe {name}: {error}: --set {key}=auto"
    recipe(name, [f"{key}=auto"])


def test_a_translator_is_loaded_for_any_kernels(tmp_path, monkeypatch):
    run, asked = RunFolder(tmp_path), []
    run.write_text(run.recipe, recipe("mt-demo", ["encoder.impl=triton"]).to_toml())
    monkeypatch.setattr("drill.translation.build.Subwords.load", lambda path: range(9))
    monkeypatch.setattr(
        "drill.translation.build.translator", lambda settings, *given: asked.append(settings)
    )
    monkeypatch.setattr("drill.translation.build.load_weights", lambda *given: None)
    load_translation(tmp_path, device="cpu")
    assert [settings.encoder["impl"] for settings in asked] == ["auto"]


@pytest.mark.parametrize(
    ("setting", "value"), [("impl", "persistent"), ("impl", "graph"), ("encoder", "triton")]
)
def test_a_run_told_to_train_by_some_kernels_is_used_by_others(
    drill, place, monkeypatch, setting, value
):
    """As on a machine without a GPU, or with another one."""
    monkeypatch.setattr("drill.kernels.lstm.lstm._obstacle", lambda *given: "there is no GPU")
    monkeypatch.setattr(
        "drill.kernels.label_encoder.encode_labels.triton_missing", lambda *given: "no GPU"
    )
    run = place / "runs" / f"by-{value}"
    shutil.copytree(place / "runs" / "tiny", run)
    before = run.joinpath("recipe.toml").read_text()
    assert before.count(f'{setting} = "auto"') == 1
    run.joinpath("recipe.toml").write_text(
        before.replace(f'{setting} = "auto"', f'{setting} = "{value}"')
    )
    assert drill("generate", f"runs/by-{value}", "--tokens", "3", *CPU)[0] == 0
    assert load_run(run, device="cpu").settings != load_run(place / "runs" / "tiny").settings
    code, _, err = drill("train", f"runs/by-{value}", "--set", "training.epochs=3", *CPU)
    assert code == 1
    table = "encoder" if setting == "impl" else "layer"
    assert err.strip().endswith(f": --set {table}.{setting}=auto")
    further = ("--set", f"{table}.{setting}=auto", "--set", "training.epochs=3")
    code, out, err = drill("train", f"runs/by-{value}", *further, *CPU)
    assert code == 0, err
    assert "best of 3 epochs" in out
