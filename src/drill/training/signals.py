"""Ctrl-C and SIGTERM: a flag that is read between steps, and raised again afterwards."""

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

logger = logging.getLogger("drill")


class GracefulShutdown:
    """Inside, the first Ctrl-C or SIGTERM only sets ``requested``; the second one acts as usual.

        with GracefulShutdown() as shutdown:
            while not shutdown.requested:
                step()

    ``number`` is the first signal; two within 0.1 s count as one. Python delivers signals to the
    main thread: in other threads this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    TOGETHER = 0.1  # seconds: a job manager may send both

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None
        self._noted = 0.0
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # The handlers stay until the second signal: without one Python prints a traceback.
        if not self.requested:
            self.requested, self.number, self._noted = True, number, time.monotonic()
        elif time.monotonic() - self._noted >= self.TOGETHER:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def reraise_signal(number: int | None, sentence: str) -> None:
    """Do now what a noted signal does by default.

    Ctrl-C raises KeyboardInterrupt. So does a signal that is ignored outside, or that another
    process got (None): the caller has to know that work has stopped. SIGTERM ends the process or
    calls its handler. ``sentence`` says what was stopped.
    """
    handler = None if number is None else signal.getsignal(number)
    if number is None or handler in (signal.default_int_handler, signal.SIG_IGN):
        raise KeyboardInterrupt(sentence)
    logger.warning(sentence)
    signal.raise_signal(number)
