"""`drill demo`."""

import importlib
import shlex
from dataclasses import replace

import pytest

from drill import tasks
from drill.language_modeling.run import load_language_model
from drill.report.analysis.comparison import RunComparison
from drill.report.tables import number_format
from tests.helpers.workspaces import RECIPE


@pytest.fixture
def tiny_demo(workspace, monkeypatch):
    """The module of the command, with recipes for the tiny text."""
    demo = importlib.import_module("drill.cli.demo")
    for name in demo.RECIPES:
        layer = "tied" if name.endswith("tied") else "deep-residual"
        (workspace / f"{name}.toml").write_text(
            RECIPE.replace("deep-residual", layer).replace("depth = 2\n", "")
        )
    monkeypatch.setattr(demo, "RECIPES", tuple(f"{name}.toml" for name in demo.RECIPES))
    monkeypatch.setattr(demo, "PROMPTS", ("lamp", "sea"))
    return demo


def test_an_interrupted_demo_trains_no_other_model(run_cli, workspace, tiny_demo, monkeypatch):
    """Interrupted in the test, which came to its end: the run is finished."""
    real, trained = tasks.train, []

    def interrupted(settings, folder, **options):
        trained.append(folder.name)
        return replace(real(settings, folder, **options), interrupted=True)

    monkeypatch.setattr(tasks, "train", interrupted)
    code, _, err = run_cli("demo", "--runs", "stopped", "-o", "stopped.html", "--epochs", "1")
    assert (code, trained) == (130, [tiny_demo.RECIPES[0]])
    assert err.splitlines()[-1].startswith("stopped; ")
    assert not (workspace / "stopped.html").exists()


def test_the_demo_compares_two_runs(run_cli, cli_output, workspace, tiny_demo, monkeypatch):
    words = ("demo", "--runs", "demo", "-o", "demo.html", "--epochs", "1")
    code, out, err = run_cli(*words)
    assert code == 0, err
    assert err.startswith("training demo-tied in demo/demo-tied.toml: tied\n")
    assert "loss without <eos> and <unk> (" in out
    assert "epochs 1, one seed;" in out
    compared = RunComparison(tiny_demo.EDGES)
    for name in ("tied", "drill"):
        compared.add(name, load_language_model(f"demo/demo-{name}.toml", device="cpu"))
    (text,) = compared.texts
    tied, other = (
        next(band for band in text.losses[each] if band.high == 1000) for each in ("tied", "drill")
    )
    named, difference = f"  training count {tied.label} (", other.mean_loss - tied.mean_loss
    (band,) = (line.split() for line in out.splitlines() if line.startswith(named))
    assert band[-3] == f"{tied.mean_loss:.3f}"
    assert band[-1] == number_format.change(difference, 3)  # in nats, as papers compare losses
    assert "Samples" in (workspace / "demo.html").read_text()
    again = run_cli(*words)[2]
    assert again.count("already trained: ") == 2
    assert "training demo" not in again
    proposed = [line for line in out.splitlines() if " drill " in f"{line} "]
    assert len(proposed) == 5
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    for line in proposed:
        words = shlex.split(line)
        command = words[words.index("drill") + 1 :]
        cli_output(*command, *(("--port", "0") if command[0] == "play" else ()))
