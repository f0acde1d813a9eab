"""`drill train` and `drill finetune`: what they print and write, and errors."""

import logging
import shutil
import signal
from pathlib import Path

import pytest
import torch

from drill.errors import RunFolderError
from drill.language_modeling.evaluation.perplexity import Perplexity
from drill.language_modeling.run import load_language_model
from drill.training.device import device_name
from drill.training.loop import TRAINING_LOG, Outcome
from drill.training.run.folder import RunFolder
from tests.helpers.workspaces import RECIPE

CPU = ("--device", "cpu")
TINY = ("train", "tiny.toml", *CPU)


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_a_summary_comes_before_training(run_cli):
    words = (*TINY, "--name", "said", *sets("training.epochs=5"))
    code, out, err = run_cli(*words)
    assert code == 0
    lines = err.splitlines()
    assert lines[0].endswith(": deep-residual 2")
    assert device_name(torch.device("cpu")) in lines[1]
    assert "1,967 parameters, 151 " in lines[2]
    validated = [line for line in lines[3:] if "valid ppl" in line]
    assert validated[0].startswith("epoch 1/5  train ppl ")
    assert err.count("(* best so far)") == 1
    code, again, err = run_cli(*words)
    assert (code, again) == (0, out)
    assert err.startswith("already trained: tiny in runs/said: ")
    assert run_cli(*words, "-q") == (0, out, "")


@pytest.mark.parametrize(
    ("name", "changes", "noted"),
    [("few", ["training.epochs=1"], "about 22 steps"), ("enough", ["training.epochs=5"], None)],
)
@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_few_steps_are_noted(run_cli, caplog, quiet, name, changes, noted):
    words = (*TINY, "--name", f"{name}{len(quiet)}", *sets(*changes), *quiet)
    assert run_cli(*words)[0] == 0
    # What is logged elsewhere is not shown with -q.
    shown = [record for record in caplog.records if record.name == "drill"]
    said = [record.message for record in shown if record.levelno == logging.WARNING]
    assert [line.startswith(noted) for line in said] == ([True] if noted else [])
    caplog.clear()
    run_cli(*words)
    assert not caplog.records  # it is trained already


def test_an_infinite_perplexity_is_printed(run_cli):
    wild = ("optimizer.lr=1e6", "optimizer.max_grad_norm=none", "training.epochs=1")
    changes = sets(*wild, "training.ar_weight=0", "training.tar_weight=0")
    for _ in range(2):  # trained, and read from what was written
        code, out, err = run_cli(*TINY, "--name", "wild", "-q", *changes)
        assert (code, err) == (0, "")
        assert out.startswith("runs/wild: valid perplexity inf  test perplexity inf ")


def test_max_minutes_ends_a_run(cli_output, workspace):
    brief = (*TINY, "--name", "brief", "--set")
    for _ in range(2):  # trained, and asked again
        out = cli_output(*brief, "training.max_minutes=1e-6")
        assert "(best of 1 epoch: 1; " in out
        assert out.endswith(", ended by training.max_minutes)\n")
    assert "max_minutes = 1e-06" in (workspace / "runs/brief/recipe.toml").read_text()
    out = cli_output(*brief, "training.max_minutes=60")  # that its epochs do not need
    assert "(best of 2 epochs: 2; " in out
    assert "ended by" not in out


@pytest.mark.parametrize("name", ["", " ", ".", "..", "../out", "a/../../out", "/tmp/out"])
@pytest.mark.parametrize("command", [("train", "tiny.toml"), ("finetune", "runs/tiny")])
def test_a_name_stays_inside_the_folder_of_runs(cli_error, workspace, command, name):
    before = set(workspace.rglob("*"))
    cli_error(*command, "--name", name, key="--name")
    assert set(workspace.rglob("*")) == before


@pytest.mark.parametrize("quiet", [False, True])
def test_the_log_of_training_is_shown(run_cli, monkeypatch, quiet):
    def speaking(*arguments, **options):
        logging.getLogger(TRAINING_LOG).info("training on cuda: LSTM persistent")
        raise RunFolderError("no more")

    monkeypatch.setattr("drill.tasks.train", speaking)
    _, out, err = run_cli(*TINY, *(["-q"] if quiet else []))
    assert out == ""
    assert ("training on cuda: LSTM persistent\n" in err) is not quiet
    assert not logging.getLogger(TRAINING_LOG).handlers


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("number", "status"), [(None, 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_has_its_exit_status(run_cli, monkeypatch, finished, number, status):
    """Also when the run had just finished."""

    def interrupted(settings, folder, **options):
        scores = Perplexity(100.0, 50, 1) if finished else None
        return Outcome(finished, 2, 1, scores, scores, 1.0, interrupted=True, signal=number)

    monkeypatch.setattr("drill.tasks.train", interrupted)
    code, out, _ = run_cli(*TINY, "-q")
    assert code == status
    assert ("runs/tiny: valid perplexity 7.39  test perplexity 7.39" in out) is finished


def test_a_run_has_the_name_of_its_recipe_and_the_seed_that_was_given(cli_output, workspace):
    (workspace / "other.toml").write_text(RECIPE)
    words = ("train", "other.toml", "--seed", "2", "--runs", "more", "-q", *CPU)
    assert cli_output(*words, *sets("training.epochs=1")).startswith("more/other: valid")
    written = (workspace / "more/other/recipe.toml").read_text()
    assert 'recipe = "other"' in written
    assert "\nseed = 2\n" in written


def test_finetuning_starts_from_the_best_weights(cli_output, workspace, monkeypatch):
    few = (*sets("training.epochs=1", "optimizer.lr=0.001"), *CPU)
    assert "runs/tiny-finetune: valid" in cli_output("finetune", "runs/tiny", *few)
    rows = RunFolder(workspace / "runs/tiny-finetune").rows()
    assert [row["epoch"] for row in rows[:2]] == [0, 1]
    monkeypatch.chdir(workspace / "runs" / "tiny")  # the run is the current folder
    cli_output("finetune", ".", *few, "--name", "from-within")
    assert (workspace / "runs" / "from-within" / "best.safetensors").exists()
    out = cli_output("finetune", ".", *few)
    assert f"{workspace / 'runs' / 'tiny-finetune'}: valid" in out
    assert not list(Path().glob("*-finetune"))


@pytest.mark.parametrize(
    ("table", "value"), [("encoder", "persistent"), ("encoder", "graph"), ("layer", "triton")]
)
def test_a_run_trained_by_some_kernels_is_used_by_others(
    run_cli, cli_output, cli_error, workspace, monkeypatch, table, value
):
    """As on a machine without a GPU, or with another one."""
    monkeypatch.setattr("drill.kernels.lstm.lstm._unavailable", lambda *given: "there is no GPU")
    missing = "drill.kernels.label_encoder.encode_labels.triton_missing"
    monkeypatch.setattr(missing, lambda *given: "no GPU")
    run = workspace / "runs" / f"by-{value}"
    shutil.copytree(workspace / "runs" / "tiny", run)
    head, section, rest = run.joinpath("recipe.toml").read_text().partition(f"[{table}]\n")
    assert 'impl = "auto"' in rest
    changed = rest.replace('impl = "auto"', f'impl = "{value}"', 1)
    run.joinpath("recipe.toml").write_text(head + section + changed)
    assert run_cli("generate", f"runs/by-{value}", "--max-new-tokens", "3", *CPU)[0] == 0
    assert (
        load_language_model(run, device="cpu").settings
        != load_language_model(workspace / "runs" / "tiny").settings
    )
    more = ("train", f"runs/by-{value}", *sets("training.epochs=3"), *CPU)
    key = f"{table}.impl=auto"
    cli_error(*more, key=f"--set {key}")
    out = cli_output(*more, "--set", key)
    assert "best of 3 epochs" in out
