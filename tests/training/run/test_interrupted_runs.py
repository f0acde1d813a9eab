"""Ctrl-C and SIGTERM in a run from Python: all is saved, then they reach the caller."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drill.tasks import train
from drill.training.run.folder import RunFolder
from drill.training.settings import Settings
from drill.training.signals import GracefulShutdown, reraise_signal
from tests.helpers.language_models import small_settings, write_texts
from tests.helpers.processes import ROOT
from tests.helpers.tasks import interrupted

pytestmark = pytest.mark.usefixtures("default_ctrl_c")
STOPPED = "runs/a b: stopped in epoch 1; all is saved: the same call of train resumes, or drill"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settings_of_text() -> Settings:
    return small_settings(write_texts(Path("texts")))


def test_ctrl_c_reaches_the_caller_and_the_same_call_goes_on():
    settings = settings_of_text()
    wanted = re.escape(f"{STOPPED} train 'runs/a b'")
    with interrupted(3), pytest.raises(KeyboardInterrupt, match=wanted):
        train(settings, "runs/a b", device="cpu", quiet=True)
    assert RunFolder("runs/a b").last_numbers()["step"] == 3
    assert train(settings, "runs/a b", device="cpu", quiet=True).test is not None


def test_sigterm_is_given_to_its_handler_once_the_folder_is_free(caplog):
    heard = []

    def handler(number: int, frame: object) -> None:
        with RunFolder("runs/a b").locked():
            heard.append(RunFolder("runs/a b").last_numbers()["step"])

    settings = settings_of_text()
    signal.signal(signal.SIGTERM, handler)
    with interrupted(3, signal.SIGTERM):
        outcome = train(settings, "runs/a b", device="cpu", quiet=True)
    assert heard == [3]
    assert STOPPED in caplog.text
    assert (outcome.finished, outcome.interrupted) == (False, True)  # who handles it may look


@pytest.mark.parametrize("number", GracefulShutdown.SIGNALS, ids=lambda number: number.name)
def test_a_signal_that_is_ignored_outside_is_raised(number):
    signal.signal(number, signal.SIG_IGN)
    for heard in (number, None):  # another process may have heard nothing
        with pytest.raises(KeyboardInterrupt, match="stopped"):
            reraise_signal(heard, "stopped")


@pytest.mark.slow
def test_sigterm_ends_the_process(tmp_path):
    program = """
import signal
from tests.training.run.test_interrupted_runs import interrupted, settings_of_text, train
with interrupted(3, signal.SIGTERM):
    train(settings_of_text(), "runs/a b", device="cpu")
print("went on")
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith(STOPPED)
    assert RunFolder(tmp_path / "runs/a b").last_numbers()["step"] == 3
