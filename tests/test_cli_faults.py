"""Faults as sentences, of one run among several too; runs told which kernels to use."""

import shutil

import pytest
import torch

from drill.build import load_run
from drill.cli import faults
from drill.cli.faults import sentence
from drill.kernels.nvrtc import DriverError
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

    monkeypatch.setattr("drill.run_training.language_model", greedy)
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


@pytest.mark.parametrize(
    ("setting", "value"), [("impl", "persistent"), ("impl", "graph"), ("encoder", "triton")]
)
def test_a_run_told_to_train_by_some_kernels_is_used_by_others(
    drill, place, monkeypatch, setting, value
):
    """As on a machine without a GPU, or with another one."""
    monkeypatch.setattr("drill.kernels.lstm._obstacle", lambda *given: "there is no GPU")
    monkeypatch.setattr("drill.kernels.label_encoder.triton_missing", lambda *given: "no GPU")
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
    assert "no GPU; use " in err
    table = "encoder" if setting == "impl" else "layer"
    further = ("--set", f"{table}.{setting}=auto", "--set", "training.epochs=3")
    code, out, err = drill("train", f"runs/by-{value}", *further, *CPU)
    assert code == 0, err
    assert "best of 3 epochs" in out
