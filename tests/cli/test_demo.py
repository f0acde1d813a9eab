"""`drill demo`."""

import importlib
import shlex
from dataclasses import replace

import pytest

from drill import tasks
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
    (band,) = (line.split()[-3:] for line in out.splitlines() if " to 999 (" in line)
    tied, deep, change = map(float, band)
    assert change == pytest.approx(deep - tied, abs=0.0011)  # in nats, as papers compare losses
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
