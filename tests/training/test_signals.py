"""Ctrl-C and SIGTERM: the first ends a run cleanly, the second acts as always."""

import os
import signal
import threading

import pytest

from drill.training.signals import GracefulShutdown
from tests.helpers.language_models import OPTIMIZERS, after, small_run


def handlers() -> list:
    return [signal.getsignal(number) for number in GracefulShutdown.SIGNALS]


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch):
    """A second signal is meant as one, however soon it comes."""
    monkeypatch.setattr(GracefulShutdown, "TOGETHER", 0.0)


@pytest.fixture(autouse=True)
def own_handlers(default_ctrl_c):
    """Every test must leave the handlers as they were; SIGTERM may not end the tests."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    found = handlers()
    yield
    assert handlers() == found


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (signal.SIGINT, signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, signal.SIGTERM, SystemExit),
        (signal.SIGTERM, signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_the_first_signal_is_a_flag_and_the_second_acts_as_always(first, second, error):
    with GracefulShutdown() as shutdown:
        assert not shutdown.requested
        os.kill(os.getpid(), first)
        assert shutdown.requested
        with pytest.raises(error):
            os.kill(os.getpid(), second)


def both_at_once() -> None:
    """Python hears of neither before both are there."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, GracefulShutdown.SIGNALS)
    for number in GracefulShutdown.SIGNALS:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_both_kinds_at_once_are_one_request(tmp_path, monkeypatch):
    """Python reported the second with a traceback, since its handler was the system's again."""
    monkeypatch.setattr(GracefulShutdown, "TOGETHER", 60.0)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a command has it
    outcome = small_run(tmp_path, optimizer=after(3, OPTIMIZERS["sgd"](), both_at_once))
    assert (outcome.finished, outcome.interrupted) == (False, True)
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL
    assert small_run(tmp_path).finished


def test_another_thread_leaves_the_handlers_alone():
    """Python lets only the main thread set handlers: entering one there must not raise."""
    before, found, errors = handlers(), [], []

    def work() -> None:
        try:
            with GracefulShutdown() as shutdown:
                found.extend([handlers(), shutdown.requested])
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert found == [before, False]
