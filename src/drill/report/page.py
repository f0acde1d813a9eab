"""One page about runs: a single HTML file that needs nothing else, and the same as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from drill.analysis.frequency import Band, BandChange
from drill.analysis.word_accuracy import AccuracyBand
from drill.data.files import write_whole
from drill.report import ledger
from drill.report.band_tables import accuracy_table, bands_table, changes_table
from drill.report.figures import (
    bands_figure,
    best_so_far,
    changes_figure,
    curves_figure,
    looks,
    time_figure,
)
from drill.report.ledger import Row
from drill.report.markup import escape, markdown_text
from drill.report.plot import Look
from drill.report.runs import ReportError, RunSummary, read_runs
from drill.report.tables import (
    epochs_table,
    evaluations_table,
    ledger_table,
    milestones,
    recipes_table,
    runs_table,
    time_table,
)

ADAPTED = "Learning from the text"  # dynamic evaluation and the cache

Ledgers = Sequence[tuple[str, Sequence[Row]]]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    ledgers: Sequence[Path | str] = (),
    bands: Mapping[str, Sequence[Band]] | None = None,
    changes: Mapping[str, Sequence[BandChange]] | None = None,
    left_out: Sequence[str] = (),
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]] | None = None,
    samples: Mapping[str, Sequence[str]] | None = None,
    title: str = "Runs",
    now: datetime | None = None,
) -> Path:
    """Write one HTML file about run folders and ledgers, whole or not at all; gives its path.

    bands    loss by word frequency of each model, from ``frequency_bands``
    changes  each model against another, from ``compare_bands``
    left_out words that ``bands`` and ``changes`` exclude, which the page then says
    accuracy of translators, by ``"word"`` or ``"subword"`` and model, from ``word_accuracy``
    samples  texts of each model
    now      the time the page says; the same input and time give the same bytes

    Names in ``bands``, ``changes`` and ``samples`` that are those of runs share their colours.
    """
    out = Path(out)
    now = datetime.now(UTC) if now is None else now
    if now.tzinfo is None:
        raise ValueError(f"write_report: now needs a time zone, such as UTC; {now} has none")
    content = html_page(
        read_runs(runs),
        [(str(path), ledger.read(path)) for path in ledgers],
        bands or {},
        changes or {},
        left_out,
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
    if _seeds(found):
        parts += ["## By recipe", recipes_table(found).markdown()]
    if any(run.evaluations for run in found):
        parts += [f"## {ADAPTED}", evaluations_table(found).markdown()]
    for path in ledgers:
        rows = ledger.read(path)
        parts += [f"## {markdown_text(path)}"]
        parts += [ledger_table(rows).markdown() if rows else "No results were recorded.\n"]
        if any(row.evaluations for row in rows):
            parts += [f"### {ADAPTED}", evaluations_table(rows).markdown()]
    if faults := [fault for run in found for fault in run.faults]:
        parts += ["## Read with care", "".join(f"- {markdown_text(each)}\n" for each in faults)]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def html_page(
    runs: Sequence[RunSummary],
    ledgers: Ledgers,
    bands: Mapping[str, Sequence[Band]],
    changes: Mapping[str, Sequence[BandChange]],
    left_out: Sequence[str],
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]],
    samples: Mapping[str, Sequence[str]],
    title: str,
    now: datetime,
) -> str:
    look = looks(runs, [*bands, *changes, *samples])
    sections = [
        ("results", "Results", _results(runs)),
        ("curves", "Learning curves", _by_corpus(runs, look, "curves")),
        ("time", "Time to a perplexity", _by_corpus(runs, look, "time")),
        ("evaluations", ADAPTED, _evaluations(runs)),
        ("bands", "Rare and frequent words", _bands(bands, changes, left_out, accuracy, look)),
        ("samples", "Samples", _samples(samples, look)),
        ("ledgers", "Ledgers", _ledgers(ledgers)),
        ("settings", "Settings and environment", _settings(runs)),
        ("faults", "Read with care", _faults(runs)),
    ]
    shown = [(key, heading, body) for key, heading, body in sections if body]
    links = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown)
    style = resources.files("drill.report").joinpath("page.css").read_text(encoding="utf-8")
    number = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">{number}, written {escape(_time(now))}</p>',
        *_lead(runs),
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


# -- sections -------------------------------------------------------------------------------------


def _lead(runs: Sequence[RunSummary]) -> Iterator[str]:
    for corpus, group in _corpora(runs).items():
        tested = [run for run in group if run.test is not None]
        if tested:
            best = min(tested, key=lambda run: run.test or 0.0)
            layer = f", with the output layer {best.layer}" if best.layer else ""
            where = f" on {corpus}" if corpus else ""
            said = f"Lowest test perplexity{where}: {best.test:.2f}, by {best.name}{layer}."
            yield f'<p class="lead">{escape(said)}</p>'


def _results(runs: Sequence[RunSummary]) -> str:
    if not runs:
        return "<p>No runs were given.</p>"
    parts = [recipes_table(runs).html("Runs of one recipe together")] if _seeds(runs) else []
    return "\n".join([*parts, runs_table(runs).html("Every run")])


def _evaluations(runs: Sequence[RunSummary]) -> str:
    if not any(run.evaluations for run in runs):
        return ""
    text = (
        "Dynamic evaluation steps the weights as the text is read, a cache points to recent words."
    )
    table = evaluations_table(runs).html("Perplexity of models that go on learning")
    return f"<p>{escape(text)}</p>\n{table}"


def _by_corpus(runs: Sequence[RunSummary], look: Mapping[str, Look], kind: str) -> str:
    """Perplexities of different texts do not compare, so each corpus has its own plot."""
    draw = _curves if kind == "curves" else _times
    groups = _corpora([run for run in runs if run.curve])
    parts = []
    for number, (corpus, group) in enumerate(groups.items()):
        if len(groups) > 1:
            parts.append(f"<h3>{escape(corpus or 'unknown corpus')}</h3>")
        parts.append(draw(group, look, f"{kind}-{number}"))
    return "\n".join(parts)


def _curves(runs: Sequence[RunSummary], look: Mapping[str, Look], identifier: str) -> str:
    text = "What lies above the upper edge is cut off; the table has it."
    if any(point.averaged for run in runs for point in run.curve):
        text += " A ring marks the first epoch of averaged weights."
    figure = curves_figure(runs, look, identifier, text)
    table = epochs_table(runs).html("Validation perplexity by epoch")
    return f"{figure or '<p>No epoch has a finite perplexity.</p>'}\n{table}"


def _times(runs: Sequence[RunSummary], look: Mapping[str, Look], identifier: str) -> str:
    """One epoch tells its own length, not how long a perplexity takes: so it is left out."""
    short = [run.name for run in runs if sum(point.epoch > 0 for point in run.curve) < 2]
    runs = [run for run in runs if run.name not in short]
    why = f"<p>Not shown, since one epoch has one time only: {escape(', '.join(short))}.</p>"
    if not runs:
        return why
    devices = list(dict.fromkeys(run.device for run in runs if run.device))
    text = f"Measured on {', '.join(devices)}." if devices else "The devices are not known."
    figure = time_figure(runs, look, identifier, text)
    if figure is None:
        return "<p>No epoch has a time and a finite perplexity.</p>"
    best = min(y for run in runs for _, y in best_so_far(run) if y > 0.0)
    table = time_table(runs, milestones(best))
    shown = f"{figure}\n{table.html('Time to the first epoch at or below a perplexity')}"
    return f"{shown}\n{why}" if short else shown


def _bands(
    bands: Mapping[str, Sequence[Band]],
    changes: Mapping[str, Sequence[BandChange]],
    left_out: Sequence[str],
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]],
    look: Mapping[str, Look],
) -> str:
    parts: list[str | None] = []
    if bands:
        text = "How often a word occurs in the training text, and what it costs to predict it."
        table = bands_table(bands, left_out).html("Loss by training count")
        parts += [bands_figure(bands, look, "bands-loss", text), table]
    if changes:
        text = "Above zero more is lost than by the model compared with, below zero less."
        table = changes_table(changes, left_out).html("Loss against the model compared with")
        parts += [changes_figure(changes, look, "bands-change", text), table]
    for kind, models in accuracy.items():
        parts.append(
            accuracy_table(models, of=kind).html(f"{kind.capitalize()}s that translators get right")
        )
    return "\n".join(part for part in parts if part is not None)


def _samples(samples: Mapping[str, Sequence[str]], look: Mapping[str, Look]) -> str:
    parts = []
    for name, texts in samples.items():
        parts.append(f"<h3><bdi>{escape(name)}</bdi></h3>")
        colour = look[name].classes
        parts += [
            f'<blockquote class="{colour}" dir="auto">{escape(t)}</blockquote>' for t in texts
        ]
    return "\n".join(parts)


def _ledgers(ledgers: Ledgers) -> str:
    parts = []
    for path, rows in ledgers:
        if not rows:
            parts.append(f"<p>{escape(path)}: no results were recorded.</p>")
        else:
            parts.append(ledger_table(rows).html(path))
        if any(row.evaluations for row in rows):
            parts.append(evaluations_table(rows).html(f"{path}, {ADAPTED.lower()}"))
    return "\n".join(parts)


def _settings(runs: Sequence[RunSummary]) -> str:
    parts = []
    for run in runs:
        about = ", ".join(each for each in (run.recipe, run.layer, run.device) if each)
        tables = _tables(run)
        blocks = "".join(
            f"<div><h4>{escape(name)}</h4>{_pairs(table)}</div>" for name, table in tables.items()
        )
        heading = f"<bdi>{escape(run.name)}</bdi> <small>{escape(about)}</small>"
        parts.append(f"<details><summary>{heading}</summary>")
        parts.append(f'<div class="pairs">{blocks}</div></details>')
    return "\n".join(parts)


def _faults(runs: Sequence[RunSummary]) -> str:
    items = "".join(f"<li>{escape(fault)}</li>" for run in runs for fault in run.faults)
    return f'<ul class="faults">{items}</ul>' if items else ""


# -- parts ----------------------------------------------------------------------------------------


def _seeds(runs: Sequence[RunSummary]) -> bool:
    return len(recipes_table(runs).rows) < len(runs)


def _corpora(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs by the name of their corpus, in order of appearance."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        data = run.settings.get("data")
        corpus = data.get("corpus") if isinstance(data, Mapping) else None
        groups.setdefault(str(corpus or ""), []).append(run)
    return groups


def _tables(run: RunSummary) -> dict[str, Mapping[str, Any]]:
    """The tables of a recipe, what stands above them, and the environment."""
    inner = {key: value for key, value in run.settings.items() if isinstance(value, Mapping)}
    above = {key: value for key, value in run.settings.items() if key not in inner}
    about = {"environment": run.environment} if run.environment else {}
    return {"run": {"folder": run.folder, **above}, **inner, **about}


def _pairs(table: Mapping[str, Any]) -> str:
    return f"<dl>{''.join(_pair(key, value) for key, value in _flat(table, ''))}</dl>"


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _pair(key: str, value: Any) -> str:
    return f"<dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd>"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _write(stream: Any, content: bytes) -> None:
    stream.write(content)
