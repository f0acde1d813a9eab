"""Translators of a ledger by their output layer: BLEU of every seed, its mean and spread."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean, stdev

from pages import main

from drill.report import Row

BASE = "tied"


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Corpora one after another; within each the base first, then by BLEU."""
    scored = [row for row in rows if "bleu" in row.extra]
    yield "| corpus | layer | parameters | BLEU of each seed | mean | spread | over tied |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for corpus, found in groupby(sorted(scored, key=corpus_of), corpus_of):
        layers: dict[str, list[Row]] = {}
        for row in found:
            layers.setdefault(row.layer, []).append(row)
        base = average(layers[BASE]) if BASE in layers else None
        for layer in sorted(layers, key=lambda name: (name != BASE, average(layers[name]))):
            runs = sorted(layers[layer], key=lambda row: row.seed)
            scores = [row.extra["bleu"] for row in runs]
            spread = f"{stdev(scores):.2f}" if len(scores) > 1 else ""
            over = "" if base is None or layer == BASE else f"{average(runs) - base:+.2f}"
            each = ", ".join(f"{score:.1f}" for score in scores)
            yield (
                f"| {corpus} | {layer} | {runs[0].parameters:,} | {each} | {average(runs):.2f} | "
                f"{spread} | {over} |"
            )


def corpus_of(row: Row) -> str:
    return row.recipe.split("-")[0]


def average(rows: Sequence[Row]) -> float:
    return mean(row.extra["bleu"] for row in rows)


if __name__ == "__main__":
    main(__doc__, "bleu", table)
