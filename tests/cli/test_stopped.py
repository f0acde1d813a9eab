"""Ctrl-C where nothing can be saved: a line says what there is, and nothing new stays behind."""

import os
import signal
from pathlib import Path

import pytest

from drill import tasks
from drill.data.text import corpora
from tests.helpers.language_models import contents
from tests.helpers.tasks import LM, MT
from tests.helpers.translators import set_by_command

pytestmark = pytest.mark.usefixtures("default_ctrl_c")
COMMANDS = {LM: ("train", "tiny.toml"), MT: ("train", "mt-demo", *set_by_command())}
NOTHING = "stopped before training had anything to save"


def ctrl_c(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
@pytest.mark.parametrize("task", COMMANDS)
def test_ctrl_c_before_the_first_step_removes_the_folder(run_cli, monkeypatch, task, quiet):
    for name in ("build_optimizer", "record_start"):
        with monkeypatch.context() as patch:
            patch.setattr(tasks, name, ctrl_c)
            words = (*COMMANDS[task], "--runs", "fresh/runs", "--device", "cpu", *quiet)
            code, out, err = run_cli(*words)
        assert (code, out, err.splitlines()[-1]) == (130, "", NOTHING)
        assert not Path("fresh").exists()


def test_ctrl_c_leaves_other_files(run_cli, workspace, monkeypatch):
    """A folder that was there is not emptied, nor one next to which another run has come."""
    monkeypatch.setattr(tasks, "record_start", ctrl_c)
    (workspace / "mine" / "here").mkdir(parents=True)
    (workspace / "mine" / "here" / "vocabulary.json").write_text("[]")
    for name in ("here", "new"):
        words = ("--runs", "mine", "--name", name, "--device", "cpu")
        assert run_cli(*COMMANDS[LM], *words)[0] == 130
    assert [path.name for path in (workspace / "mine").iterdir()] == ["here"]
    assert (workspace / "mine" / "here" / "vocabulary.json").exists()


def test_ctrl_c_while_resuming_changes_nothing(run_cli, workspace, monkeypatch):
    monkeypatch.setattr("drill.training.state.TrainingState.restore", ctrl_c)
    before = contents(workspace / "runs/tiny")
    code, _, err = run_cli(*COMMANDS[LM], "--device", "cpu")
    assert code == 130
    assert err.splitlines()[-1].startswith("stopped; runs/tiny ")
    assert contents(workspace / "runs/tiny") == before


def test_ctrl_c_in_the_demo(run_cli, monkeypatch):
    monkeypatch.setattr(corpora, "check_corpus", lambda corpus: None)  # it may be missing
    monkeypatch.setattr(tasks, "train", ctrl_c)
    code, _, err = run_cli("demo", "--runs", "fresh")
    assert (code, err.splitlines()[-1]) == (130, NOTHING)
