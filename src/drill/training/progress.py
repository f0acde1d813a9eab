"""How far a run is and how fast it goes."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How far a run is: reported a few times a second, and with ``row`` after a validation.

    With ``work`` a validation or a test is running, and ``share`` is of that.
    """

    epoch: int
    epochs: int
    share: float  # of the epoch
    step: int  # of the run
    loss: float  # mean of an epoch, up to the last row of metrics; NaN before
    tokens_per_second: float  # of an epoch, up to the last row of metrics; 0.0 before
    seconds_left: float  # of the run; infinite in the first steps, see ``Reporter``
    row: dict[str, Any] | None = None
    work: str | None = None


FIRST_AFTER = 2.0  # seconds before the first line
AT_LEAST_EVERY = 60.0


class LineThrottle:
    """Whether it is time for another line: each gap is twice as long as the one before."""

    def __init__(self, seconds: float) -> None:
        self._gap = seconds
        self.restart()

    def restart(self) -> None:
        """Another line was printed just now."""
        self._since = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self._since < self._gap:
            return False
        self._gap = min(2.0 * self._gap, AT_LEAST_EVERY)
        self.restart()
        return True


class ProgressLines:
    """Prints a line per epoch, and some between; give ``show`` and ``say`` to ``train``.

    ``write`` prints a line, to stderr by default.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self.write = write or partial(print, file=sys.stderr, flush=True)
        self._throttle = LineThrottle(FIRST_AFTER)
        self._estimated = self._star_explained = False

    def say(self, line: str) -> None:
        self.write(line)
        self._throttle.restart()

    def show(self, report: Progress) -> None:
        self.show_events(report)
        if report.row is None and self._throttle.due():
            share = "" if report.work is not None else f"{report.share:4.0%}  "
            line = f"{report.work or f'epoch {report.epoch}'}  {share}{status_text(report)}"
            self.write(line.rstrip())

    def show_events(self, report: Progress) -> None:
        """The time that the run will take, once it is known, and the line of a validation."""
        training = report.row is None and report.work is None
        if training and not self._estimated and math.isfinite(report.seconds_left):
            self._estimated = True
            about = rough_duration(report.seconds_left)
            self.say(f"about {about} to go (estimated at step {report.step:,})")
        if report.row is not None:
            line = epoch_line(report.row, report.epochs)
            if report.row["best"] and not self._star_explained:
                line += "  (* best so far)"
                self._star_explained = True
            self.say(line)


def status_text(report: Progress) -> str:
    """How far a validation or a test is, or how well and how fast training goes."""
    if report.work is not None:
        return f"{report.share:.0%}"
    parts = []
    if not math.isnan(report.loss):
        parts.append(f"train loss {report.loss:.3f}  ppl {perplexity_of(report.loss):,.1f}")
    if math.isfinite(report.seconds_left):
        left = duration(report.seconds_left)
        parts.append(f"{report.tokens_per_second:,.0f} tokens/s  {left} left")
    return "  ".join(parts)


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """Training and validation perplexity of an epoch, or inside one; * marks the best so far."""
    trained = row["train_perplexity"]
    inside = f" step {row['step']:,}" if row.get("kind") == "validation" else ""
    parts = [
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}{inside}",
        f"train ppl {trained:9.2f}" if trained is not None else " " * 19,
        f"valid ppl {row['valid_perplexity']:9.2f} {'*' if row['best'] else ' '}",
        f"{row['seconds']:7.1f} s",
        f"{row['tokens_per_second']:9,.0f} tokens/s" if trained is not None else "before training",
    ]
    if "valid_bleu" in row:
        parts.append(f"valid BLEU {row['valid_bleu']:.2f}")
    parts += ["averaged weights"] if row["averaged"] else []
    parts += ["untied"] if "untied" in row else []
    return "  ".join(parts)


def rough_duration(seconds: float) -> str:
    """12 s, 12 min or 12.3 h."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000.0 else f"{seconds / 3600:,.1f} h"


def duration(seconds: float) -> str:
    whole = int(min(seconds, 359_999_999))
    hours, rest = divmod(whole, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def perplexity_of(loss: float) -> float:
    """exp(loss), infinite where a float cannot have it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
