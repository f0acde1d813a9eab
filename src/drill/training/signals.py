"""Ctrl-C and SIGTERM: a flag that is read between steps, and later a signal again."""

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

logger = logging.getLogger("drill")


class GracefulShutdown:
    """Inside, the first Ctrl-C or SIGTERM only sets ``asked``; the second one acts as always.

        with GracefulShutdown() as shutdown:
            while not shutdown.requested:
                step()

    ``number`` is that first signal; signals of one moment count as one. Python hands them to the
    main thread alone: in any other one this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    TOGETHER = 0.1  # seconds: what stops a job may send both kinds, and mean one end by them

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None
        self._heard = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # The handlers stay until the second signal comes: Python may know of it already, and says
        # with a traceback that it finds none.
        if not self.requested:
            self.requested, self.number, self._heard = True, number, time.monotonic()
        elif time.monotonic() - self._heard >= self.TOGETHER:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before = {}


def reraise_signal(number: int | None, sentence: str) -> None:
    """Do now what a noted signal does elsewhere, with a sentence on what it has stopped.

    Ctrl-C is a KeyboardInterrupt that holds the sentence. So is a signal that is ignored elsewhere,
    or that another process heard (None): work has stopped, so the caller has to know. SIGTERM ends
    the process, or is given to its handler, once the sentence is logged; this returns where a
    handler does.
    """
    handler = None if number is None else signal.getsignal(number)
    if number is None or handler in (signal.default_int_handler, signal.SIG_IGN):
        raise KeyboardInterrupt(sentence)
    logger.warning(sentence)
    signal.raise_signal(number)
