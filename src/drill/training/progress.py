"""How far a run is and how fast it goes."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drill.language_modeling.state import Position
from drill.training.state import Limits
from drill.translation.state import TranslationPosition


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


FIRST_AFTER = 5.0  # seconds of silence
AT_LEAST_EVERY = 60.0


class Pulse:
    """Whether it is time to say something again: each silence is twice as long as the one before.

    first  seconds before anything is said
    """

    def __init__(self, first: float | None = None) -> None:
        self._gap = FIRST_AFTER if first is None else first
        self.spoken()

    def spoken(self) -> None:
        """Something else was said just now."""
        self._since = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self._since < self._gap:
            return False
        self._gap = min(2.0 * self._gap, AT_LEAST_EVERY)
        self.spoken()
        return True


class ProgressLines:
    """A line an epoch, and some between them; give ``show`` and ``say`` to ``train_run``."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr
        self._pulse = Pulse()

    def say(self, line: str) -> None:
        self._write(line)
        self._pulse.spoken()

    def show(self, report: Progress) -> None:
        if report.row is not None:
            self.say(epoch_line(report.row, report.epochs))
        elif self._pulse.due():
            work = report.work is not None
            told = state(report) if work else f"{report.share:4.0%}  {state(report)}"
            self._write(f"{report.work or f'epoch {report.epoch}'}  {told}")


def state(report: Progress) -> str:
    """How far a validation or a test is, or how well and how fast training goes."""
    if report.work is not None:
        return f"{report.share:.0%}"
    return (
        f"loss {report.loss:.3f}  perplexity {_power(report.loss):,.1f}  "
        f"{report.tokens_per_second:,.0f} tokens/s  {duration(report.seconds_left)} left"
    )


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    trained = row["train_perplexity"]
    parts = [
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}",
        f"train {trained:9.2f}" if trained is not None else " " * 15,
        f"valid {row['valid_perplexity']:9.2f}{'*' if row['best'] else ' '}",
        f"{row['seconds']:7.1f} s",
        f"{row['tokens_per_second']:9,.0f} tokens/s" if trained is not None else "before training",
    ]
    if "valid_bleu" in row:
        parts.append(f"BLEU {row['valid_bleu']:.2f}")
    return "  ".join(parts) + ("  averaged" if row["averaged"] else "")


def duration(seconds: float) -> str:
    whole = int(min(seconds, 359_999_999))
    hours, rest = divmod(whole, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _power(loss: float) -> float:
    return 2.718281828459045**loss if loss < 700.0 else float("inf")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
