"""Reports on runs and ledgers: one self-contained HTML file, or the same tables in Markdown."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from drill.data.text.corpora import WORDS
from drill.errors import ReportError
from drill.files import atomic_write
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.page import figures
from drill.report.page.figures import Curve
from drill.report.results import ledger
from drill.report.results.run_files import read_starts
from drill.report.results.runs import RunSummary, read_runs, setting_text
from drill.report.tables import band_tables, result_tables
from drill.report.tables.band_tables import TextBands
from drill.report.tables.markup import Table, markdown_text
from drill.training.settings import flatten

ADAPTED = "Dynamic evaluation and cache"
GENERATOR = '<meta name="generator" content="drill">'  # marks a file that drill may replace

Block = tuple[str, Any]
"""(kind, content): text, heading, table (caption, Table), figure (or None), samples, settings or
list."""


@dataclass(frozen=True)
class Section:
    key: str
    heading: str
    blocks: Sequence[Block]  # none: the section is not shown


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    ledgers: Sequence[Path | str] = (),
    texts: Sequence[TextBands] = (),
    samples: Mapping[str, Sequence[str]] | None = None,
    title: str = "Runs",
    now: datetime | None = None,
) -> Path:
    """Write one HTML file about run folders and ledgers; an existing file is replaced.

    Args:
        runs: run folders.
        out: the file to write.
        ledgers: .jsonl files of results.
        texts: loss by word frequency; each text has its own tables.
        samples: generated texts of each model.
        title: of the page.
        now: the time shown; the same input and time give the same bytes.

    Names in ``texts`` and ``samples`` that are names of runs share their colours.

    Returns:
        The path of the file.
    """
    found = read_runs(runs)
    rows = [(str(path), ledger.read(path)) for path in ledgers]
    samples = samples or {}
    look = figures.css_classes(
        [*(run.name for run in found), *(name for text in texts for name in text.models), *samples]
    )
    remarks = [each for run in found for each in run.remarks]
    trained = [*by_corpus([run for run in found if run.curve]).items()]
    several = [run for run in found if sum(each.epochs_done > 0 for each in run.validations) > 1]
    timed = [*by_corpus(several).items()]  # one validation is no curve
    read = [(_corpora_and_models(text.models, found), text) for text in texts]
    results = [("table", ("Every run", result_tables.runs_table(found)))] if found else []
    sections = [
        Section("results", "Results", results),
        Section("curves", "Learning curves", [*_each(trained, _curves, look)]),
        Section("time", "Time to a perplexity", [*_each(timed, _times, look)]),
        Section("evaluations", ADAPTED, [*_evaluations(found)]),
        Section(
            "bands",
            "Rare and frequent words",
            [*_each(read, _bands, look), *_accuracy(found)],
        ),
        Section("calibration", "Calibration", [*_each(read, _calibration, look)]),
        Section("labels", "Label vectors", [*_each(read, _labels, look)]),
        Section(
            "samples",
            "Samples",
            [("samples", (name, look[name], texts)) for name, texts in samples.items()],
        ),
        Section("ledgers", "Ledgers", [*_ledgers(rows)]),
        Section("settings", "Settings and environment", [*_settings(found)]),
        Section("remarks", "Warnings", [("list", remarks)] if remarks else []),
    ]
    counts = {"run": len(found), "ledger": len(rows)}
    parts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items() if n]
    about = ", ".join(parts) or "no runs"
    return write_page(Path(out), title, about, sections, now)


def write_page(
    out: Path,
    title: str,
    about: str,
    sections: Sequence[Section],
    now: datetime | None = None,
) -> Path:
    now = datetime.now(UTC) if now is None else now
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    def read(name: str) -> str:
        return resources.files("drill.report.page").joinpath(name).read_text("utf-8")

    script = read("plots.js")
    text = environment.from_string(read("page.html.jinja")).render(
        style="".join(map(read, ("colors.css", "plots.css", "page.css"))),
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        generator=GENERATOR,
        title=title,
        about=f"{about}, written {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        sections=[each for each in sections if each.blocks],
    )
    atomic_write(out, text.encode("utf-8", "replace"))  # file names may have lone surrogates
    return out


def check_replaceable(path: Path) -> None:
    """Raise if ``path`` is a file that drill did not write."""
    if path.is_file():
        with path.open("rb") as stream:
            if GENERATOR.encode() not in stream.read(1000):
                raise ReportError(
                    f"{path}: exists and is no page of drill; remove it, or name another file"
                )


def markdown(runs: Sequence[Path | str], ledgers: Sequence[Path | str] = ()) -> str:
    """The tables of ``write_report``.

    Args:
        runs: run folders.
        ledgers: .jsonl files of results.

    Returns:
        Markdown.
    """
    found = read_runs(runs)
    parts = ["## Runs", result_tables.runs_table(found).markdown()] if found else []
    if (adapted := result_tables.evaluations_table(found)).rows:
        parts += [f"## {ADAPTED}", adapted.markdown()]
    for path in ledgers:
        rows = ledger.read(path)
        table = result_tables.runs_table(rows).markdown() if rows else "No results were recorded."
        parts += [f"## {markdown_text(path)}", table]
        if any(row.evaluations for row in rows):
            parts += [f"### {ADAPTED}", result_tables.evaluations_table(rows).markdown()]
    if remarks := [each for run in found for each in run.remarks]:
        parts += ["## Warnings", "".join(f"- {markdown_text(each)}\n" for each in remarks)]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


# -- sections -------------------------------------------------------------------------------------


def _each(
    groups: Sequence[tuple[str, Any]],
    blocks: Callable[[Any, Mapping[str, str]], Iterator[Block]],
    look: Mapping[str, str],
) -> Iterator[Block]:
    """The blocks of every group, under its name where there are several groups."""
    for name, group in groups:
        found = list(blocks(group, look))
        if found and len(groups) > 1:
            yield "heading", name or "unknown corpus"
        yield from found


def _curves(runs: Sequence[RunSummary], look: Mapping[str, str]) -> Iterator[Block]:
    curves = {run.name: [Curve.of(run)] for run in runs}
    for figure in (figures.epochs_figure(curves, look), figures.training_figure(curves, look)):
        if figure is not None:
            yield "figure", figure


def _times(runs: Sequence[RunSummary], look: Mapping[str, str]) -> Iterator[Block]:
    curves = {run.name: [Curve.of(run)] for run in runs}
    if (figure := figures.time_figure(curves, look)) is not None:
        yield "figure", figure


def _evaluations(runs: Sequence[RunSummary]) -> Iterator[Block]:
    if (table := result_tables.evaluations_table(runs)).rows:
        about = "Dynamic evaluation updates the weights while it reads; a cache finds recent words."
        yield "text", about
        yield "table", ("Perplexity of dynamic evaluation and the cache", table)


def _bands(text: TextBands, look: Mapping[str, str]) -> Iterator[Block]:
    bar, nats = figures.bar_figure, "nats per token"
    caption = "How often a word occurs in the training text, and what it costs to predict it."
    yield "figure", bar("Mean loss", nats, text.losses, "mean_loss", look, caption)
    yield "table", ("Loss by training count", band_tables.bands_table(text))
    if text.changes:
        base = next(iter(text.losses))
        what, axis = f"Loss against {base}", "% change of loss, over tokens"
        caption = f"Change of loss against {base}; below zero is better."
        yield "figure", bar(what, axis, text.changes, "by_tokens", look, caption)
        yield "table", (what, band_tables.changes_table(text))


def _calibration(text: TextBands, look: Mapping[str, str]) -> Iterator[Block]:
    if text.calibration:
        yield "figure", figures.reliability_figure(text.calibration, look)
        yield "table", ("Calibration", band_tables.calibration_table(text.calibration))


def _labels(text: TextBands, look: Mapping[str, str]) -> Iterator[Block]:
    if text.norms:
        for key, name in (("embedding", "E"), ("output", "g_out(E)")):
            what, axis = f"Norm of {name}", f"mean norm in {name}"
            yield "figure", figures.bar_figure(what, axis, text.norms, key, look)
        yield "table", ("Norms by training count", band_tables.norms_table(text.norms))
        yield "table", ("Nearest labels", band_tables.nearest_table(text.nearest))


def _accuracy(runs: Sequence[RunSummary]) -> Iterator[Block]:
    """A table for all translators with the same references and search."""
    groups: dict[tuple[Any, ...], dict[str, Sequence[AccuracyBand]]] = {}
    for run in runs:
        for (kind, search), bands in band_tables.saved_accuracy(run.evaluations).items():
            references = tuple((band.low, band.types, band.wanted) for band in bands)
            key = (kind, corpus_of(run), search, references)
            groups.setdefault(key, {})[run.name] = bands
    for (kind, corpus, search, _), models in groups.items():
        of = ", ".join(filter(None, (corpus, search)))
        caption = f"{kind.capitalize()}s that translators get right ({of})"
        yield "table", (caption, band_tables.accuracy_table(models, of=kind))


def _ledgers(ledgers: Sequence[tuple[str, Sequence[ledger.Row]]]) -> Iterator[Block]:
    for path, rows in ledgers:
        if rows:
            yield "table", (path, result_tables.runs_table(rows))
        if any(row.evaluations for row in rows):
            yield "table", (f"{path}, {ADAPTED.lower()}", result_tables.evaluations_table(rows))


def _settings(runs: Sequence[RunSummary]) -> Iterator[Block]:
    if (differing := settings_table(runs)).rows:
        yield "table", ("Settings that differ", differing)
    for run in runs:
        about = ", ".join(each for each in (run.recipe, run.layer, run.device) if each)
        tables = {key: value for key, value in run.settings.items() if isinstance(value, Mapping)}
        above = {key: value for key, value in run.settings.items() if key not in tables}
        shown = {"run": {"folder": run.folder, **above}, **tables}
        for n, start in enumerate(read_starts(run.environment) if run.environment else ()):
            shown[f"environment, resumed {n}" if n else "environment"] = start
        pairs = {
            name: [(key, setting_text(value)) for key, value in flatten(table).items()]
            for name, table in shown.items()
        }
        yield "settings", (run.name, about, pairs)


def settings_table(runs: Sequence[RunSummary]) -> Table:
    """A row for every setting with several values, a column for every run."""
    flat = {
        run.name: {key: setting_text(each) for key, each in flatten(run.settings).items()}
        for run in runs
    }
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    return Table.of(
        [
            [("settings", key), *((name, settings.get(key, "")) for name, settings in flat.items())]
            for key in keys
            if len({settings[key] for settings in flat.values() if key in settings}) > 1
        ]
    )


def by_corpus(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs by corpus, since perplexities of different texts or tokens do not compare."""
    groups: dict[str, list[RunSummary]] = {}
    for each in runs:
        groups.setdefault(corpus_of(each), []).append(each)
    return groups


def corpus_of(run: RunSummary) -> str:
    """The corpus, and of models of subwords their tokenizer: perplexities differ with it."""
    data = run.settings.get("data")
    if not isinstance(data, Mapping):
        return ""
    corpus, tokenizer = str(data.get("corpus") or ""), data.get("tokenizer", WORDS)
    return corpus if tokenizer == WORDS else f"{corpus}, subwords {tokenizer}"


def _corpora_and_models(models: Sequence[str], runs: Sequence[RunSummary]) -> str:
    corpora = by_corpus([run for run in runs if run.name in models])
    both = (", ".join(filter(None, corpora)), ", ".join(dict.fromkeys(models)))
    return ": ".join(filter(None, both))
