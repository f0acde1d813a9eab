"""What long work shows: a bar on a terminal, lines everywhere else."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from drill.training.progress import Progress as Report
from drill.training.progress import ProgressLines, Pulse, epoch_line, state

COUNT_AFTER = 10.0  # seconds of counting before a line of it where there is no terminal


def console() -> Console:
    """Tables are never cut: a narrow terminal wraps lines by itself."""
    shown = Console(highlight=False, markup=False, soft_wrap=True)
    return shown if shown.is_terminal else Console(highlight=False, markup=False, width=200)


class TrainingDisplay:
    """Shows the progress of a run; give ``show`` to ``train``."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(highlight=False, markup=False, stderr=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._lines = ProgressLines(self._print)

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=1.0, state="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, report: Report) -> None:
        if self.quiet:
            return
        if self._bar is None:
            self._lines.show(report)
            return
        if report.row is not None:
            self._print(epoch_line(report.row, report.epochs))
        title = report.work or f"epoch {report.epoch}/{report.epochs}"
        self._bar.update(
            self._task,
            description=title,
            completed=report.share,
            state=state(report),
            refresh=True,
        )

    def say(self, line: str) -> None:
        """A remark, above the bar."""
        if not self.quiet:
            self._lines.say(line)

    def _print(self, line: str) -> None:
        (self._bar.console if self._bar is not None else self.console).print(line, soft_wrap=True)


class Counter:
    """A bar for work that counts up to a known end, or a line now and then; call it with (done,
    total)."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self._pulse = Pulse(COUNT_AFTER)
        shown = Console(highlight=False, markup=False, stderr=True)
        self._bar = (
            None
            if quiet or not shown.is_terminal
            else Progress(
                TextColumn(title),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
                TimeRemainingColumn(),
                console=shown,
                transient=True,
            )
        )
        self._task: Any = None

    def __enter__(self) -> Callable[[int, int | None], None]:
        if self._bar is not None:
            self._bar.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _update(self, done: int, total: int | None) -> None:
        if self._bar is None:
            if not self.quiet and self._pulse.due():
                note(f"{self.title}  {done:,}" + (f" of {total:,}" if total else ""))
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=total or 0)
        self._bar.update(self._task, completed=done, total=total or 0)


def note(line: str) -> None:
    """A remark that is no result: to stderr, so that results can be piped."""
    print(line, file=sys.stderr, flush=True)
