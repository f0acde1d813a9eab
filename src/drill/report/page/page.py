"""Reports on runs and ledgers: one self-contained HTML file, or the same tables in Markdown."""

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from drill.data.text.corpora import WORDS
from drill.errors import ReportError
from drill.files import atomic_write
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.page import figures
from drill.report.page.figures import Curve, Figure
from drill.report.results import ledger
from drill.report.results.evaluations import ANALYSIS
from drill.report.results.run_files import read_starts
from drill.report.results.runs import RunSummary, read_runs, setting_text
from drill.report.tables import band_tables, result_tables
from drill.report.tables.band_tables import TextBands
from drill.report.tables.markup import Listing, Table, markdown_text
from drill.training.settings import flatten

T = TypeVar("T")
GENERATOR = '<meta name="generator" content="drill">'  # marks a file that drill may replace


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run, folded up on a page."""

    name: str
    about: str
    tables: Mapping[str, Sequence[tuple[str, str]]]


Block = str | Table | Listing | Figure | RunSettings
"""What a section consists of; a string is a heading."""


@dataclass(frozen=True)
class Section:
    key: str
    heading: str
    blocks: Sequence[Block]  # none: the section is not shown

    @classmethod
    def of(cls, key: str, heading: str, *blocks: Block | None) -> "Section":
        """A section without the empty ones of ``blocks``."""
        return cls(key, heading, _under_headings([block for block in blocks if block]))


def _under_headings(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without headings that nothing follows."""
    return [
        block
        for block, after in pairwise([*blocks, ""])
        if not (isinstance(block, str) and isinstance(after, str))
    ]


# -- two ways to write a report -------------------------------------------------------------------


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

    Names in ``texts`` that are names of runs share their colours.

    Returns:
        The path of the file.
    """
    summaries = read_runs(runs)
    sections = run_sections(summaries, ledgers, texts, samples or {})
    counts = {"run": len(summaries), "ledger": len(ledgers)}
    parts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items() if n]
    return write_page(Path(out), title, ", ".join(parts) or "no runs", sections, now)


def markdown(runs: Sequence[Path | str], ledgers: Sequence[Path | str] = ()) -> str:
    """The tables of ``write_report``.

    Args:
        runs: run folders.
        ledgers: .jsonl files of results.

    Returns:
        Markdown.
    """
    return as_markdown(run_sections(read_runs(runs), ledgers))


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
        sections=[section for section in sections if section.blocks],
        kind=lambda block: type(block).__name__,
    )
    atomic_write(out, text.encode("utf-8", "replace"))  # file names may have lone surrogates
    return out


def as_markdown(sections: Sequence[Section], level: int = 2) -> str:
    """The tables and lists of ``sections``, under headings of this level."""
    parts = []
    for section in sections:
        printed = [block for block in section.blocks if isinstance(block, str | Table | Listing)]
        blocks = _under_headings(printed)
        parts += [f"{'#' * level} {markdown_text(section.heading)}\n"] if blocks else []
        for block in blocks:
            if isinstance(block, str):
                parts.append(f"{'#' * (level + 1)} {markdown_text(block)}\n")
            elif isinstance(block, Table | Listing):
                parts += [f"**{markdown_text(block.caption)}**\n"] if block.caption else []
                parts.append(block.markdown())
    return "\n".join(parts)


def check_replaceable(path: Path) -> None:
    """Raise if ``path`` is a file that drill did not write."""
    if path.is_file():
        with path.open("rb") as stream:
            if GENERATOR.encode() not in stream.read(1000):
                raise ReportError(
                    f"{path}: exists and is no page of drill; remove it, or name another file"
                )


# -- sections -------------------------------------------------------------------------------------


def run_sections(
    runs: Sequence[RunSummary],
    ledgers: Sequence[Path | str] = (),
    texts: Sequence[TextBands] = (),
    samples: Mapping[str, Sequence[str]] | None = None,
) -> list[Section]:
    """What is reported of runs and ledgers; see ``write_report``."""
    look = figures.css_classes([*(run.name for run in runs), *(n for t in texts for n in t.models)])
    several = [run for run in runs if sum(point.epochs_done > 0 for point in run.validations) > 1]

    def curves(group: Sequence[RunSummary]) -> Iterator[Figure | None]:
        curve_by_run = {run.name: [Curve.of(run)] for run in group}
        yield figures.epochs_figure(curve_by_run, look)
        yield figures.training_figure(curve_by_run, look)

    def times(group: Sequence[RunSummary]) -> Iterator[Figure | None]:
        yield figures.time_figure({run.name: [Curve.of(run)] for run in group}, look)

    trained = by_corpus([run for run in runs if run.curve])
    timed = by_corpus(several)  # one validation is no curve
    named = [(_corpora_and_models(text.models, runs), text) for text in texts]
    ranks = {run.name: row for run in runs for row in run.evaluations if row["kind"] == ANALYSIS}
    return [
        Section.of("results", "Results", result_tables.runs_table(runs)),
        Section.of("curves", "Learning curves", *_in_groups(trained.items(), curves)),
        Section.of("time", "Time to a perplexity", *_in_groups(timed.items(), times)),
        Section.of(
            "evaluations", "Dynamic evaluation and cache", result_tables.evaluations_table(runs)
        ),
        *text_sections(named, look, _accuracy(runs)),
        Section.of("rank", "Rank", result_tables.ranks_table(ranks)),
        Section.of(
            "samples", "Samples", *(Listing(lines, name) for name, lines in (samples or {}).items())
        ),
        Section.of("ledgers", "Ledgers", *_ledgers(ledgers)),
        Section.of("settings", "Settings and environment", settings_table(runs), *_settings(runs)),
        Section.of("remarks", "Warnings", Listing([each for run in runs for each in run.remarks])),
    ]


def text_sections(
    texts: Sequence[tuple[str, TextBands]], look: Mapping[str, str], accuracy: Iterable[Block] = ()
) -> list[Section]:
    """Loss by word frequency, calibration and label vectors of texts and their names.

    ``accuracy`` is that of translators, by word frequency.
    """

    def losses(text: TextBands) -> Iterator[Block | None]:
        caption = "How often a word occurs in the training text, and what it costs to predict it."
        bar, nats = figures.bar_figure, "nats per token"
        yield bar("Mean loss", nats, text.losses, "mean_loss", look, caption)
        yield band_tables.bands_table(text)
        if text.changes:
            base = next(iter(text.losses))
            measure, axis = f"Loss against {base}", "% change of loss, over tokens"
            caption = f"Change of loss against {base}; below zero is better."
            yield bar(measure, axis, text.changes, "by_tokens", look, caption)
            yield band_tables.changes_table(text)

    def calibration(text: TextBands) -> Iterator[Block]:
        if text.calibration:
            yield figures.reliability_figure(text.calibration, look)
            yield band_tables.calibration_table(text.calibration)

    def labels(text: TextBands) -> Iterator[Block | None]:
        for key, name in (("embedding", "E"), ("output", "g_out(E)")):
            measure, axis = f"Norm of {name}", f"mean norm in {name}"
            yield figures.bar_figure(measure, axis, text.norms, key, look)
        yield band_tables.norms_table(text.norms)
        yield band_tables.nearest_table(text.nearest)

    rare = "Rare and frequent words"
    return [
        Section.of("bands", rare, *_in_groups(texts, losses), *accuracy),
        Section.of("calibration", "Calibration", *_in_groups(texts, calibration)),
        Section.of("labels", "Label vectors", *_in_groups(texts, labels)),
    ]


def _in_groups(
    groups: Collection[tuple[str, T]], blocks: Callable[[T], Iterable[Block | None]]
) -> Iterator[Block | None]:
    """The blocks of every group, under its name where there are several groups."""
    for name, group in groups:
        if len(groups) > 1:
            yield name or "unknown corpus"
        yield from blocks(group)


def _accuracy(runs: Sequence[RunSummary]) -> Iterator[Block]:
    """A table for all translators with the same references and search."""
    groups: dict[tuple[Any, ...], dict[str, Sequence[AccuracyBand]]] = {}
    for run in runs:
        for (kind, search), bands in band_tables.saved_accuracy(run.evaluations).items():
            references = tuple((band.low, band.types, band.wanted) for band in bands)
            key = (kind, corpus_of(run), search, references)
            groups.setdefault(key, {})[run.name] = bands
    for (kind, corpus, search, _), models in groups.items():
        details = ", ".join(filter(None, (corpus, search)))
        caption = f"{kind.capitalize()}s that translators get right ({details})"
        yield replace(band_tables.accuracy_table(models, of=kind), caption=caption)


def _ledgers(paths: Sequence[Path | str]) -> Iterator[Block]:
    for path in paths:
        rows = ledger.read_ledger(path)
        yield str(path)
        yield result_tables.runs_table(rows)
        yield result_tables.evaluations_table(rows)


def _settings(runs: Sequence[RunSummary]) -> Iterator[RunSettings]:
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
        yield RunSettings(run.name, about, pairs)


def settings_table(runs: Sequence[RunSummary]) -> Table:
    """A row for every setting with several values, a column for every run."""
    flat = {
        run.name: {key: setting_text(value) for key, value in flatten(run.settings).items()}
        for run in runs
    }
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    return Table.of(
        [
            [("settings", key), *((name, settings.get(key, "")) for name, settings in flat.items())]
            for key in keys
            if len({settings[key] for settings in flat.values() if key in settings}) > 1
        ],
        caption="Settings that differ",
    )


def by_corpus(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs by corpus, since perplexities of different texts or tokens do not compare."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(corpus_of(run), []).append(run)
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
