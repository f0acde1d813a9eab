"""What commands print: progress (a bar on a terminal, lines elsewhere), tables, remarks."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from drill.training.progress import LineThrottle, ProgressLines, status_text
from drill.training.progress import Progress as Report

if TYPE_CHECKING:
    from drill.report.tables import markup

COUNT_AFTER = 10.0  # seconds before the first line of ``counting``


def console() -> Console:
    """Console for results; lines are not truncated."""
    output = Console(highlight=False, markup=False, soft_wrap=True)
    return output if output.is_terminal else Console(highlight=False, markup=False, width=200)


def plain_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, **options: Any
) -> Table:
    """A table with ``left`` columns of text, a line below its headings and where a row is empty."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, **options)
    for n, heading in enumerate(headings):
        table.add_column(heading, justify="left" if n < left else "right", no_wrap=n < left)
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def table_text(table: "markup.Table") -> str:
    """A table of a report as text, with its notes below."""
    output = console()
    with output.capture() as captured:
        output.print(plain_table(table.headings, table.rows))
        output.print(*table.notes, sep="\n")
    return captured.get()


class TrainingDisplay:
    """Shows the progress of a run; give ``show`` and ``say`` to ``drill.train``.

    ``quiet``: nothing, as in all processes but the first.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(highlight=False, markup=False, stderr=True, quiet=quiet)
        show_bar = not quiet and self.console.is_terminal
        self._bar = _bar(self.console, show_bar, "{task.description}", "{task.fields[state]}")
        self._task = self._bar.add_task("starting", total=1.0, state="")
        self._lines = ProgressLines(lambda line: self.console.print(line, soft_wrap=True))
        self.say = self._lines.say

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, report: Report) -> None:
        if self._bar.disable:
            self._lines.show(report)
            return
        self._lines.show_events(report)
        self._bar.update(
            self._task,
            description=report.work or f"epoch {report.epoch}/{report.epochs}",
            completed=report.share,
            state=status_text(report),
            refresh=True,
        )


@contextmanager
def counting(title: str, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Shows the progress of some work, unless ``quiet``.

    Call what it yields with the number done and the total.
    """
    output = Console(highlight=False, markup=False, stderr=True)
    count = "{task.completed:,.0f} of {task.total:,.0f}"
    bar = _bar(output, output.is_terminal and not quiet, title, count, TimeRemainingColumn())
    throttle = LineThrottle(COUNT_AFTER)

    def update(done: int, total: int | None) -> None:
        if bar.disable:
            if not quiet and throttle.due():
                note(f"{title}  {done:,}" + (f" of {total:,}" if total else ""))
            return
        if not bar.tasks:
            bar.add_task("", total=total or 0)
        bar.update(bar.task_ids[0], completed=done, total=total or 0)

    with bar:
        yield update


def _bar(console: Console, visible: bool, before: str, after: str, *more: Any) -> Progress:
    bar = BarColumn(bar_width=24)
    columns = (TextColumn(before), bar, TextColumn(after), *more)
    return Progress(*columns, console=console, transient=True, disable=not visible)


def note(line: str) -> None:
    """Print a remark to stderr, after the results printed so far."""
    sys.stdout.flush()
    print(printable(line), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """``text`` without control characters and lone surrogates: ``\\n`` instead of a line break."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", lambda match: ascii(match[0])[1:-1], text)
