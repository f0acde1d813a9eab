"""`drill train` with what a run has written: its recipe.toml, and its folder."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from drill.training.run.folder import RunFolder
from tests.helpers.files import contents
from tests.helpers.tasks import LM, MT, interrupted
from tests.helpers.translators import set_by_command

ON_A_CPU = ("--device", "cpu", "-q")


@pytest.fixture
def begun(workspace, tmp_path):
    """A copy of the run in a folder of its own."""
    return Path(shutil.copytree(workspace / "runs" / "tiny", tmp_path / "begun"))


def settings(folder):
    return tomllib.loads((folder / "recipe.toml").read_text())


def test_a_recipe_of_a_run_keeps_the_name_that_stands_there(run_cli, workspace):
    """Else the ledger could not say what was changed of which recipe."""
    folder = workspace / "runs" / "named"
    shutil.copytree(workspace / "runs" / "tiny", folder)
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace('recipe = "tiny"', 'recipe = "demo-drill"'))
    own = ("train", "runs/named/recipe.toml", "--name", "named", "--device", "cpu")
    code, _, err = run_cli(*own, "--set", "training.epochs=3")
    assert code == 0
    assert err.startswith("resuming demo-drill in runs/named: ")
    assert settings(folder)["recipe"] == "demo-drill"
    assert run_cli("ledger", "add", "runs/named")[0] == 0
    row = json.loads((workspace / "runs" / "ledger.jsonl").read_text())
    assert row["recipe"] == "demo-drill"
    assert "data.corpus: bible -> text" in row["changes"]


def test_a_copy_of_a_runs_recipe_trains_in_a_folder_of_its_own_name(run_cli, workspace):
    """Not in that of the recipe it names, which may hold another run."""
    shutil.copy(workspace / "runs/tiny/recipe.toml", workspace / "copy.toml")
    (workspace / "upon.toml").write_text('base = "runs/tiny/recipe.toml"\n')
    for file, name in (("copy.toml", "tiny"), ("upon.toml", "upon")):
        assert run_cli("train", file, "--set", "training.epochs=1", *ON_A_CPU)[0] == 0
        assert settings(workspace / "runs" / Path(file).stem)["recipe"] == name


def test_train_resumes_a_run_folder(run_cli, begun):
    before = settings(begun)
    code, out, err = run_cli("train", str(begun), "--device", "cpu")
    assert (code, err.split(" in ")[0]) == (0, "already trained: tiny")
    code, out, err = run_cli("train", str(begun), "--device", "cpu", "--set", "training.epochs=3")
    assert (code, err.split(" in ")[0]) == (0, "resuming tiny")
    assert "resumes in epoch 3, after step " in err
    assert out.startswith(f"{begun}: valid perplexity ")
    assert "(best of 3 epochs: " in out
    before["training"]["epochs"] = 3
    assert settings(begun) == before


def test_a_run_killed_before_its_first_checkpoint_starts_again(run_cli, cli_error, begun):
    shutil.rmtree(begun / "last")
    (begun / "best.safetensors").unlink()
    rows = (begun / "metrics.jsonl").read_text().splitlines(keepends=True)
    (begun / "metrics.jsonl").write_text("".join(rows[:-1]))  # without the test
    cli_error("evaluate", str(begun), key=f"no checkpoint yet; `drill train {begun}`")
    code, _, err = run_cli("train", str(begun), "--device", "cpu")
    assert (code, "no checkpoint yet, training from the start" in err) == (0, True)


def test_train_resumes_from_any_folder(cli_output, begun, workspace, monkeypatch, tmp_path):
    """Its path to the text starts where it was trained, and then holds from wherever it went on."""
    monkeypatch.chdir(tmp_path)
    cli_output("train", "begun", *ON_A_CPU, "--set", "training.epochs=3")
    assert settings(begun)["data"]["corpus"] == str(workspace / "text")
    monkeypatch.chdir("begun")
    out = cli_output("train", ".", *ON_A_CPU, "--set", "training.epochs=4")
    assert "(best of 4 epochs: " in out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["text"], "text: "),
        (["runs/tiny", "--name", "other"], "--name other: "),
        (["runs/tiny", "--runs", "other"], "--runs other: "),
        (["runs/tiny", "--set", "layer.depth=3"], "layer.depth: 2 -> 3"),
        (["runs/tiny", "--seed", "7"], "training.seed: "),
    ],
)
def test_train_rejects_other_settings_of_a_run_folder(cli_error, words, key):
    cli_error("train", *words, *ON_A_CPU, key=key)


def test_a_recipe_comes_before_a_folder_of_its_name(cli_error, workspace):
    """As in the folder that holds the runs."""
    (workspace / "demo-drill").mkdir()
    cli_error("train", "demo-drill", "--set", "data.corpus=nowhere", *ON_A_CPU, key="nowhere")
    cli_error("train", "./demo-drill", *ON_A_CPU, key="demo-drill: is not a run folder")


# -- a run that has ended, or trained more than is asked: nothing that it found is lost -----------

COMMANDS = {
    LM: ["tiny.toml", "--set", "training.epochs=1"],
    MT: ["mt-demo", *set_by_command("training.epochs=1")],
}


@pytest.mark.parametrize("task", COMMANDS)
def test_a_finished_run_of_more_epochs_is_what_the_first_command_gives(
    run_cli, workspace, caplog, task
):
    name = f"longer {task}"
    first = ("train", *COMMANDS[task], "--name", name, *ON_A_CPU)
    assert run_cli(*first)[0] == 0
    code, longer, _ = run_cli("train", f"runs/{name}", "--set", "training.epochs=2", *ON_A_CPU)
    before = contents(workspace / "runs" / name)
    caplog.clear()
    assert run_cli(*first)[:2] == (code, longer) == (0, longer)
    assert ["training.epochs=1" in record.message for record in caplog.records] == [True]
    assert "(best of 2 epochs: " in longer
    assert contents(workspace / "runs" / name) == before


@pytest.mark.parametrize(
    ("task", "limit"),
    [(LM, "epochs=1"), (LM, "max_steps=1"), (MT, "max_minutes=1e-6"), (MT, "max_steps=1")],
)
def test_a_longer_run_that_was_stopped_is_not_ended(run_cli, workspace, task, limit):
    """Its test would replace what it had found before it went on."""
    name = f"stopped {task} {limit}"
    own = ("train", f"runs/{name}", *ON_A_CPU, "--set")
    assert run_cli("train", *COMMANDS[task], "--name", name, *ON_A_CPU)[0] == 0
    once = RunFolder(f"runs/{name}").last_numbers()["step"]
    with interrupted(once * 3 // 2):
        assert run_cli(*own, "training.epochs=30")[0] == 130
    before = contents(workspace / "runs" / name)
    code, out, err = run_cli(*own, f"training.{limit}")
    assert (code, out) == (1, "")
    assert err.startswith(f"drill: runs/{name}: has already used ")
    assert f"set training.{limit.partition('=')[0]} above that" in err
    assert contents(workspace / "runs" / name) == before
    assert run_cli(*own, "training.epochs=4")[0] == 0
