"""Translators of a ledger by their output layer: BLEU of every seed, its mean and spread.

Runs stand together where they differ by their seed alone. Of a recipe that was trained with several
settings the latest stand here, and of a seed that was trained twice the latest run.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean, stdev

from pages import main

from drill.report import Row, read

BASE = "tied"


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Corpora one after another; within each the base first, then by BLEU."""
    scored = [row for row in rows if "bleu" in row.extra]
    yield "| corpus | layer | parameters | BLEU of each seed | mean | spread | over tied |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for corpus, found in groupby(sorted(scored, key=corpus_of), corpus_of):
        groups = latest(list(found))
        bases = [runs for runs in groups if runs[0].layer == BASE]
        base = average(bases[0]) if bases else None
        for runs in sorted(groups, key=lambda runs: (runs[0].layer != BASE, average(runs))):
            scores = [row.extra["bleu"] for row in runs]
            spread = f"{stdev(scores):.2f}" if len(scores) > 1 else ""
            alone = base is None or runs[0].layer == BASE
            over = "" if alone else f"{average(runs) - base:+.2f}"
            each = ", ".join(f"{score:.1f}" for score in scores)
            yield (
                f"| {corpus} | {runs[0].layer} | {runs[0].parameters:,} | {each} | "
                f"{average(runs):.2f} | {spread} | {over} |"
            )


def latest(rows: Sequence[Row]) -> list[list[Row]]:
    """Runs of each recipe and layer with the settings recorded last, one a seed, by seed."""
    settings: dict[tuple[str, str], str] = {}
    runs: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: row.recorded):
        settings[row.recipe, row.layer] = row.settings_digest
        runs.setdefault((row.recipe, row.layer, row.settings_digest), {})[row.seed] = row
    return [
        [row for _, row in sorted(runs[recipe, layer, digest].items())]
        for (recipe, layer), digest in settings.items()
    ]


def corpus_of(row: Row) -> str:
    return row.recipe.split("-")[0]


def average(rows: Sequence[Row]) -> float:
    return mean(row.extra["bleu"] for row in rows)


if __name__ == "__main__":
    main(__doc__, "bleu", table, read)
