"""Threads that spin among others: a sentence to whom it concerns, once."""

import logging

import pytest

from drill import crowd
from drill.build import train_run
from tests.test_build import small, write_texts


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    monkeypatch.setattr(crowd, "_told", False)
    monkeypatch.setattr(crowd, "crowded", lambda: True)
    monkeypatch.setattr(crowd, "others_running", lambda: True)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    for name in (crowd.POLICY, crowd.THREADS):
        monkeypatch.delenv(name, raising=False)


def sentences(caplog) -> list[str]:
    return [each.getMessage() for each in caplog.records if "spin" in each.getMessage()]


def test_training_from_python_on_busy_cores_is_told_of_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = small(write_texts(tmp_path / "texts"), "training.epochs=1")
    heard = {"quiet": True}, {"opened": lambda line: None}  # silence, or one's own words
    for name, options in enumerate(heard):
        train_run(settings, tmp_path / str(name), device="cpu", **options)
    assert sentences(caplog) == []
    for name in ("a", "b"):
        train_run(settings, tmp_path / name, device="cpu")
    (said,) = sentences(caplog)
    assert said.endswith("set OMP_WAIT_POLICY=passive, or OMP_NUM_THREADS=1, before Python starts")


@pytest.mark.parametrize(
    ("threads", "quiet_cores", "variable"),
    [
        (1, None, None),
        (2, "crowded", None),
        (2, "others_running", None),
        (2, None, crowd.POLICY),
        (2, None, crowd.THREADS),
    ],
)
def test_others_are_not_told(monkeypatch, caplog, threads, quiet_cores, variable):
    if quiet_cores is not None:
        monkeypatch.setattr(crowd, quiet_cores, lambda: False)
    if variable is not None:
        monkeypatch.setenv(variable, "2")
    with caplog.at_level(logging.WARNING):
        crowd.warn_of_spinning(threads)
    assert sentences(caplog) == []
