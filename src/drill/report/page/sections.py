"""The sections of the page, each as HTML; "" where there is nothing to show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.page.figures import (
    bands_figure,
    best_so_far,
    changes_figure,
    curves_figure,
    time_figure,
)
from drill.report.page.svg_plot import Look
from drill.report.results.ledger import Row
from drill.report.results.run_files import read_starts
from drill.report.results.runs import RunSummary
from drill.report.tables.band_tables import (
    TextBands,
    accuracy_table,
    bands_table,
    by_references,
    changes_table,
)
from drill.report.tables.markup import escape
from drill.report.tables.result_tables import (
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


def lead_sentences(runs: Sequence[RunSummary]) -> Iterator[str]:
    for corpus, group in _corpora(runs).items():
        tested = [run for run in group if run.test is not None]
        if tested:
            best = min(tested, key=lambda run: run.test or 0.0)
            layer = f", with the output layer {best.layer}" if best.layer else ""
            where = f" on {corpus}" if corpus else ""
            said = f"Lowest test perplexity{where}: {best.test:.2f}, by {best.name}{layer}."
            yield f'<p class="lead">{escape(said)}</p>'


def results_section(runs: Sequence[RunSummary]) -> str:
    if not runs:
        return "<p>No runs were given.</p>"
    parts = [recipes_table(runs).html("Runs of one recipe together")] if has_seeds(runs) else []
    return "\n".join([*parts, runs_table(runs).html("Every run")])


def evaluations_section(runs: Sequence[RunSummary]) -> str:
    table = evaluations_table(runs)
    if not table.rows:
        return ""
    text = (
        "Dynamic evaluation steps the weights as the text is read, a cache points to recent words."
    )
    shown = table.html("Perplexity of models that go on learning")
    return f"<p>{escape(text)}</p>\n{shown}"


def corpora_section(runs: Sequence[RunSummary], look: Mapping[str, Look], kind: str) -> str:
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


def bands_section(
    runs: Sequence[RunSummary],
    texts: Sequence[TextBands],
    accuracy: Mapping[str, Mapping[str, Sequence[AccuracyBand]]],
    look: Mapping[str, Look],
) -> str:
    parts: list[str | None] = []
    for number, text in enumerate(texts):
        if len(texts) > 1:
            parts.append(f"<h3>{escape(_text_of(text.models, runs))}</h3>")
        caption = "How often a word occurs in the training text, and what it costs to predict it."
        table = bands_table(text).html("Loss by training count")
        parts += [bands_figure(text.losses, look, f"bands-loss-{number}", caption), table]
        if text.changes:
            base = next(iter(text.losses))
            caption = f"Change of loss against {base}; below zero is better."
            table = changes_table(text).html(f"Loss against {base}")
            parts += [changes_figure(text.changes, look, f"bands-change-{number}", caption), table]
    for kind, models in accuracy.items():
        title = f"{kind.capitalize()}s that translators get right"
        groups = by_references(models)
        for group in groups:
            of = f" ({_text_of(list(group), runs)})" if len(groups) > 1 else ""
            parts.append(accuracy_table(group, of=kind).html(f"{title}{of}"))
    return "\n".join(part for part in parts if part is not None)


def samples_section(samples: Mapping[str, Sequence[str]], look: Mapping[str, Look]) -> str:
    parts = []
    for name, texts in samples.items():
        parts.append(f"<h3><bdi>{escape(name)}</bdi></h3>")
        colour = look[name].classes
        parts += [
            f'<blockquote class="{colour}" dir="auto">{escape(t)}</blockquote>' for t in texts
        ]
    return "\n".join(parts)


def ledgers_section(ledgers: Ledgers) -> str:
    parts = []
    for path, rows in ledgers:
        if not rows:
            parts.append(f"<p>{escape(path)}: no results were recorded.</p>")
        else:
            parts.append(ledger_table(rows).html(path))
        if any(row.evaluations for row in rows):
            parts.append(evaluations_table(rows).html(f"{path}, {ADAPTED.lower()}"))
    return "\n".join(parts)


def settings_section(runs: Sequence[RunSummary]) -> str:
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


def faults_section(runs: Sequence[RunSummary]) -> str:
    care = (each for run in runs for each in (*run.faults, *run.remarks))
    items = "".join(f"<li>{escape(each)}</li>" for each in care)
    return f'<ul class="faults">{items}</ul>' if items else ""


# -- parts ----------------------------------------------------------------------------------------


def has_seeds(runs: Sequence[RunSummary]) -> bool:
    return len(recipes_table(runs).rows) < len(runs)


def _corpora(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Runs by the name of their corpus, in order of appearance."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        data = run.settings.get("data")
        corpus = data.get("corpus") if isinstance(data, Mapping) else None
        groups.setdefault(str(corpus or ""), []).append(run)
    return groups


def _text_of(models: Sequence[str], runs: Sequence[RunSummary]) -> str:
    """The corpus that models have read, where runs tell it, and the models."""
    corpora = [
        corpus
        for corpus, group in _corpora(runs).items()
        if corpus and any(run.name in models for run in group)
    ]
    return ": ".join(filter(None, [", ".join(corpora), ", ".join(dict.fromkeys(models))]))


def _tables(run: RunSummary) -> dict[str, Mapping[str, Any]]:
    """The tables of a recipe, what stands above them, and the environment of every life."""
    inner = {key: value for key, value in run.settings.items() if isinstance(value, Mapping)}
    above = {key: value for key, value in run.settings.items() if key not in inner}
    told = read_starts(run.environment) if run.environment else []
    names = ["environment", *(f"environment, resumed {n}" for n in range(1, len(told)))]
    about = dict(zip(names, told, strict=False))
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
