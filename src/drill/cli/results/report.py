"""`drill report` and `drill ledger add`: a page about runs; a ledger row for a run."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from drill.cli import display, options
from drill.errors import DrillError, SettingsError
from drill.files import check_run

PAGE = "report.html"
LEDGER = "ledger.jsonl"  # next to the run folders
HINTS = {
    ".jsonl": "; give ledgers by --ledger",
    ".toml": "; the report of a plan is drill study PLAN --report",
}


def report(
    runs: Annotated[list[Path] | None, Argument(metavar="RUN", help="Run folders.")] = None,
    ledger: Annotated[list[Path] | None, Option(help="A ledger; repeatable.")] = None,
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path(PAGE),
    title: Annotated[str, Option(help="Title of the page.")] = "Runs",
    bands: Annotated[
        bool,
        Option(
            "--bands",
            help="Language models: add loss by word frequency, calibration and label vectors.",
        ),
    ] = False,
    as_markdown: Annotated[
        bool, Option("--markdown", help="Print Markdown tables, write no page.")
    ] = False,
    device: Annotated[str, Option(help="Of --bands: auto, cpu, ...")] = "auto",
) -> None:
    """Write one self-contained page about runs and ledgers.

    Tables, learning curves, settings. --bands adds what `drill analyse` prints: the test loss by
    word frequency, also relative to the first run on the same text, calibration, and norms and
    neighbours of labels. The rank is shown where `drill analyse` has saved it, and the accuracy of
    words of translators where `drill evaluate --bands` has.
    """
    folders = _readable_runs(runs or [])
    if out.is_dir():
        raise SettingsError("is a folder; name a file", key=f"--out {out}")
    if not folders and not ledger:
        raise SettingsError("report: name run folders, or a --ledger")
    if as_markdown and bands:
        raise SettingsError("cannot be combined with --bands", key="--markdown")
    from drill.language_modeling.run import load_language_model
    from drill.report.analysis.comparison import RunComparison
    from drill.report.page.page import check_replaceable, markdown, write_report
    from drill.report.results.runs import distinct_names
    from drill.training.run.weights import task_of
    from drill.training.settings import TRANSLATION

    if as_markdown:
        echo(markdown(folders, ledger or []))
        return
    check_replaceable(out)
    comparison = RunComparison()
    for folder, name in distinct_names(folders).items() if bands else ():
        if task_of(folder) != TRANSLATION:
            display.note(f"reading {folder}")
            comparison.add(name, load_language_model(folder, device=device))
    page = write_report(
        folders,
        out,
        ledgers=ledger or [],
        texts=comparison.texts,
        title=title,
    )
    echo(f"wrote {page}")


def record(
    run: options.Run,
    ledger: Annotated[
        Path | None, Option(help=f"The ledger; {LEDGER} next to RUN by default.")
    ] = None,
    note: Annotated[str, Option(help="A remark to store with the result.")] = "",
    force: Annotated[bool, Option("--force", help="Add a result a second time.")] = False,
) -> None:
    """Add the result of a run to a ledger.

    A ledger is a .jsonl file with one result per line; `drill report` shows it as a table.
    """
    from drill.report.results.ledger import record_run
    from drill.report.results.runs import read_run
    from drill.report.tables import number_format as numbers

    if ledger is None:
        ledger = Path(os.path.normpath(run / os.pardir / LEDGER))  # `.` has no parent
    for remark in read_run(run).remarks:
        display.note(remark)
    row = record_run(run, ledger, note, force=force)
    figures = [("valid perplexity", row.valid), ("test perplexity", row.test)]
    if (bleu := row.extra.get("bleu")) is not None:  # of a translator
        figures.append(("test BLEU", bleu))
    scores = ", ".join(f"{name} {numbers.perplexity(value)}" for name, value in figures)
    echo(f"added {row.name} to {ledger}: {scores}")


def _readable_runs(paths: list[Path]) -> list[Path]:
    """Those that can be read: `runs/*` may match other files, and a run may be damaged."""
    readable, faults = [], []
    for path in paths:
        try:
            check_run(path)
            from drill.report.results.runs import read_run  # with torch, which takes seconds

            read_run(path)
            readable.append(path)
        except DrillError as error:
            faults.append(f"{error}{HINTS.get(path.suffix, '')}")
    if faults and not readable:
        raise SettingsError(faults[0])
    for fault in faults:
        display.note(f"left out: {fault}")
    return readable
