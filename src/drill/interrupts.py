"""Ctrl-C and SIGTERM as a flag that is read between steps."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Inside, the first Ctrl-C or SIGTERM only sets ``asked``; the second one acts as always.

        with Interrupts() as interrupts:
            while not interrupts.asked:
                step()

    Signals of one moment count as one. Python hands them to the main thread alone: in any other one
    this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    TOGETHER = 0.1  # seconds: what stops a job may send both kinds, and mean one end by them

    def __init__(self) -> None:
        self.asked = False
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
        if not self.asked:
            self.asked, self._heard = True, time.monotonic()
        elif time.monotonic() - self._heard >= self.TOGETHER:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before = {}
