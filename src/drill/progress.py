"""How far a run is and how fast it goes."""

import time
from dataclasses import dataclass
from typing import Any

from drill.position import Position
from drill.standing import Limits
from drill.translation_position import TranslationPosition


@dataclass(frozen=True)
class Progress:
    """Where a run stands: told a few times a second, and with ``row`` at the end of an epoch.

    With ``work`` no updates are made: ``share`` is that of a validation or a test.
    """

    epoch: int
    epochs: int
    share: float  # of the epoch
    step: int  # of the run
    loss: float  # mean of the epoch so far
    tokens_per_second: float
    seconds_left: float  # of the run
    row: dict[str, Any] | None = None
    work: str | None = None


class Speed:
    """How fast an epoch goes, and how long the rest will take."""

    def __init__(self, at: Position, rows: int, batch: int, limits: Limits) -> None:
        self.at, self.rows, self.batch, self.limits = at, rows, batch, limits
        self.restart()

    def restart(self) -> None:
        self._row, self._time = self.at.row, time.monotonic()

    def report(self, row: dict[str, Any] | None = None) -> Progress:
        at = self.at
        seconds = max(1e-9, time.monotonic() - self._time)
        rate = max(1e-9, (at.row - self._row) / seconds)  # rows a second
        left = ((self.limits.epochs - at.epoch) * self.rows + self.rows - at.row) / rate
        if self.limits.minutes is not None:
            left = min(left, max(0.0, 60.0 * self.limits.minutes - at.running()))
        if row is not None:
            row["tokens_per_second"] = at.row * self.batch / max(1e-9, at.training_seconds)
            row["tokens"] = at.row * self.batch
        return Progress(
            epoch=at.epoch,
            epochs=self.limits.epochs,
            share=min(1.0, at.row / max(1, self.rows - 1)),
            step=at.step,
            loss=at.loss,
            tokens_per_second=rate * self.batch,
            seconds_left=left,
            row=row,
        )


class Pace:
    """How fast a translator trains, in target tokens, and how long the rest will take."""

    def __init__(self, at: TranslationPosition, epochs: int) -> None:
        self.at, self.epochs = at, epochs
        self.restart(0.0)

    def restart(self, share: float) -> None:
        """Measure from here on: an epoch begins, or a validation has ended."""
        self._share, self._tokens, self._time = share, self.at.tokens, time.monotonic()

    def report(self, share: float, row: dict[str, Any] | None = None) -> Progress:
        """``share`` of the run is done."""
        at = self.at
        seconds = max(1e-9, time.monotonic() - self._time)
        return Progress(
            epoch=at.epoch,
            epochs=self.epochs,
            share=at.batch / at.batches,
            step=at.step,
            loss=at.loss,
            tokens_per_second=(at.tokens - self._tokens) / seconds,
            seconds_left=max(0.0, 1.0 - share) * seconds / max(1e-9, share - self._share),
            row=row,
        )
