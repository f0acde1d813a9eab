"""Ctrl-C and SIGTERM in a run from Python: all is saved, then KeyboardInterrupt is raised."""

import os
import re
import signal
from pathlib import Path

import pytest

from drill.language_modeling import train as train_module
from drill.tasks import train
from drill.training.run.folder import RunFolder
from drill.training.settings import Settings
from drill.training.signals import GracefulShutdown
from tests.helpers.language_models import small, write_texts
from tests.helpers.tasks import interrupted

pytestmark = pytest.mark.usefixtures("default_ctrl_c")
STOPPED = "runs/a b: stopped in epoch 1; all is saved: the same call of train resumes, or drill"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settings_of_text() -> Settings:
    return small(write_texts(Path("texts")))


@pytest.mark.parametrize("number", GracefulShutdown.SIGNALS, ids=lambda number: number.name)
def test_a_signal_reaches_the_caller_and_the_same_call_goes_on(number):
    settings = settings_of_text()
    wanted = re.escape(f"{STOPPED} train 'runs/a b'")
    with interrupted(3, number), pytest.raises(KeyboardInterrupt, match=wanted):
        train(settings, "runs/a b", device="cpu", quiet=True)
    assert RunFolder("runs/a b").last_numbers()["step"] == 3
    assert train(settings, "runs/a b", device="cpu", quiet=True).test is not None


def test_ctrl_c_in_the_test_comes_when_that_has_ended(monkeypatch):
    settings, load = settings_of_text(), train_module.load_into

    def stopping(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        load(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "load_into", stopping)
        with pytest.raises(KeyboardInterrupt, match="has finished; the same call"):
            train(settings, "runs/a", device="cpu", quiet=True)
    before = RunFolder("runs/a").rows()
    assert train(settings, "runs/a", device="cpu", quiet=True).test is not None
    assert RunFolder("runs/a").rows() == before
