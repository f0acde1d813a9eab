"""One page about runs: a single HTML file that needs nothing else, and the same as Markdown."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from drill.errors import ReportError
from drill.files import write_whole
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.page.figures import looks
from drill.report.page.sections import (
    ADAPTED,
    Ledgers,
    bands_section,
    corpora_section,
    evaluations_section,
    faults_section,
    has_seeds,
    lead_sentences,
    ledgers_section,
    results_section,
    samples_section,
    settings_section,
)
from drill.report.page.sources import sources_mark
from drill.report.results import ledger
from drill.report.results.runs import RunSummary, read_runs
from drill.report.tables.band_tables import TextBands
from drill.report.tables.markup import escape, markdown_text
from drill.report.tables.result_tables import (
    evaluations_table,
    ledger_table,
    recipes_table,
    runs_table,
)


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    ledgers: Sequence[Path | str] = (),
    texts: Sequence[TextBands] = (),
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]] | None = None,
    samples: Mapping[str, Sequence[str]] | None = None,
    title: str = "Runs",
    now: datetime | None = None,
) -> Path:
    """Write one HTML file about run folders and ledgers, whole or not at all; gives its path.

    texts    loss by word frequency, each text with its models and in a table of its own
    accuracy of translators, by ``"word"`` or ``"subword"`` and model, from ``word_accuracy``
    samples  texts of each model
    now      the time the page says; the same input and time give the same bytes

    Names in ``texts`` and ``samples`` that are those of runs share their colours.
    """
    out = Path(out)
    now = datetime.now(UTC) if now is None else now
    if now.tzinfo is None:
        raise ValueError(f"write_report: now needs a time zone, such as UTC; {now} has none")
    content = html_page(
        read_runs(runs),
        [(str(path), ledger.read(path)) for path in ledgers],
        texts,
        accuracy or {},
        samples or {},
        title,
        now,
    ).encode("utf-8")
    try:
        write_whole(out, lambda stream: _write(stream, content))
    except OSError as error:
        fault = error.strerror or type(error).__name__
        raise ReportError(f"{out}: cannot be written ({fault}); choose another file") from None
    return out


def markdown(runs: Sequence[Path | str], ledgers: Sequence[Path | str] = ()) -> str:
    """The tables of ``write_report`` as Markdown."""
    found = read_runs(runs)
    parts = []
    if found or not ledgers:
        parts += ["## Runs", runs_table(found).markdown() if found else "No runs were given.\n"]
    if has_seeds(found):
        parts += ["## By recipe", recipes_table(found).markdown()]
    if (adapted := evaluations_table(found)).rows:
        parts += [f"## {ADAPTED}", adapted.markdown()]
    for path in ledgers:
        rows = ledger.read(path)
        parts += [f"## {markdown_text(path)}"]
        parts += [ledger_table(rows).markdown() if rows else "No results were recorded.\n"]
        if any(row.evaluations for row in rows):
            parts += [f"### {ADAPTED}", evaluations_table(rows).markdown()]
    if care := [each for run in found for each in (*run.faults, *run.remarks)]:
        parts += ["## Read with care", "".join(f"- {markdown_text(each)}\n" for each in care)]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def html_page(
    runs: Sequence[RunSummary],
    ledgers: Ledgers,
    texts: Sequence[TextBands],
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]],
    samples: Mapping[str, Sequence[str]],
    title: str,
    now: datetime,
) -> str:
    look = looks(runs, [*(name for text in texts for name in text.models), *samples])
    sections = [
        ("results", "Results", results_section(runs) if runs or not ledgers else ""),
        ("curves", "Learning curves", corpora_section(runs, look, "curves")),
        ("time", "Time to a perplexity", corpora_section(runs, look, "time")),
        ("evaluations", ADAPTED, evaluations_section(runs)),
        (
            "bands",
            "Rare and frequent words",
            bands_section(runs, texts, accuracy, look),
        ),
        ("samples", "Samples", samples_section(samples, look)),
        ("ledgers", "Ledgers", ledgers_section(ledgers)),
        ("settings", "Settings and environment", settings_section(runs)),
        ("faults", "Read with care", faults_section(runs)),
    ]
    shown = [(key, heading, body) for key, heading, body in sections if body]
    links = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown)
    style = resources.files("drill.report.page").joinpath("page.css").read_text(encoding="utf-8")
    held = [(runs, "run"), (ledgers, "ledger")]
    number = ", ".join(_counted(each, name) for each, name in held if each) or "0 runs"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        sources_mark([*(run.folder for run in runs), *(path for path, _ in ledgers)]),
        f"<title>{escape(title)}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">{number}, written {escape(_time(now))}</p>',
        *lead_sentences(runs),
        f'<nav aria-label="On this page">{links}</nav>',
        "</header>",
        "<main>",
        *(
            f'<section id="{key}" aria-labelledby="{key}-heading">\n'
            f'<h2 id="{key}-heading">{heading}</h2>\n{body}\n</section>'
            for key, heading, body in shown
        ),
        "</main>",
        '<footer class="note">Made by drill. Perplexities are per predicted token, of the epoch '
        "with the lowest validation loss.</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _counted(held: Sequence[object], name: str) -> str:
    return f"{len(held)} {name}{'' if len(held) == 1 else 's'}"


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _write(stream: Any, content: bytes) -> None:
    stream.write(content)
