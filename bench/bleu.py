"""Translators of a ledger by their output layer: BLEU of every seed, and which labels are right.

Runs stand together where they differ by their seed and their layer alone, and only those are
compared. Of a layer that was trained with several of its own settings the latest stand here, and of
a seed that was trained twice the latest run. Runs that were made again with other settings, every
layer with as many seeds, are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev

from bands import band_table
from pages import main

from drill.report import Row, read
from drill.report.results.runs import digest, same_but_seed

BASE = "tied"
TOLD_APART = ("multi30k", "europarl")
OTHERS = {
    "tokenised_bleu": ("tokenised BLEU", "tokenised_signature"),
    "chrf": ("chrF", "chrf_signature"),
}
"""Scores beside BLEU: their titles and signatures."""

ABOUT = {
    "europarl": "813,000 pairs of Europarl and news, not the 4.5M pairs of WMT14, so its BLEU does "
    "not compare with the paper's",
}
"""What a corpus is, where its name and the text it is tested on may be taken for another's."""

Layers = Mapping[str, Sequence[Row]]
"""Runs that may be compared: one a seed, in their order, under the name of their layer."""


def table(rows: Sequence[Row], kinds: Sequence[str] = ("subword",)) -> Iterable[str]:
    """BLEU of all corpora, then labels by frequency where `drill evaluate --words` told of them.

    Without ``kinds`` it is for a page that says itself where its rows come from.
    """
    groups = comparisons(rows)
    head = "corpus", "layer", "parameters", "BLEU of each seed", "mean", "over tied"
    yield f"| {' | '.join([*head, *(title for title, _ in OTHERS.values())])} |"
    yield f"|---|---|{'---:|' * (4 + len(OTHERS))}"
    for corpus, layers in groups.items():
        for name, runs in layers.items():
            scores = [bleu_of(row) for row in runs]
            over = ""
            if BASE in layers and name != BASE:
                over = difference(scores, [bleu_of(row) for row in layers[BASE]])
            each = ", ".join(f"{score:.2f}" for score in scores)
            cells = [corpus, name, f"{runs[0].parameters:,}", each, f"{mean(scores):.2f}", over]
            cells += [average_of(runs, key) for key in OTHERS]
            yield f"| {' | '.join(cells)} |"
    for note in (*(origins(groups) if kinds else ()), *signatures(groups), *notes(groups)):
        yield from ("", note)
    for corpus, layers in groups.items():
        for kind in kinds:
            yield from band_table(corpus, layers, kind, BASE)


def of_the_readme(rows: Sequence[Row]) -> Iterable[str]:
    """BLEU where runs are long enough to tell layers apart; the results page has all of them."""
    told = [row for row in rows if corpus_of(row) in TOLD_APART]
    if not told:
        raise SystemExit(f"the page is about {', '.join(TOLD_APART)}, of which no row is; print it")
    return table(told, kinds=())


def whole(rows: Sequence[Row]) -> Iterable[str]:
    return table(rows, kinds=("subword", "word"))


def scored(path: Path) -> list[Row]:
    """The translators of a ledger."""
    rows = [row for row in read(path) if "bleu" in row.extra]
    if not rows:
        raise SystemExit(
            f"{path}: holds no translator's BLEU; add a run with `drill record RUN --ledger {path}`"
        )
    return rows


def comparisons(rows: Sequence[Row]) -> dict[str, Layers]:
    """Corpora one after another; within each the base first, then layers by BLEU.

    A corpus that was trained with several settings has a number behind its name.
    """
    found: dict[str, Layers] = {}
    scored = [row for row in rows if "bleu" in row.extra]
    for corpus, own in groupby(sorted(scored, key=corpus_of), corpus_of):
        by_settings: dict[str, list[Row]] = {}
        for row in sorted(own, key=lambda row: row.recorded):
            by_settings.setdefault(without_layer(row), []).append(row)
        groups = sorted(map(latest, by_settings.values()), key=recorded)
        groups = [
            group
            for place, group in enumerate(groups)
            if not any(made_again(group, later) for later in groups[place + 1 :])
        ]
        for number, layers in enumerate(groups, start=1):
            label = f"{corpus} ({number})" if len(groups) > 1 else corpus
            first = sorted(layers, key=lambda name: (name != BASE, average(layers[name])))
            found[label] = {name: layers[name] for name in first}
    return found


def latest(rows: Sequence[Row]) -> Layers:
    """Of runs in the order they were recorded, the last settings of every layer."""
    settings: dict[str, str] = {}
    runs: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        settings[row.layer] = row.settings_digest
        runs.setdefault((row.layer, row.settings_digest), {})[row.seed] = row
    return {
        name: [row for _, row in sorted(runs[name, digits].items())]
        for name, digits in settings.items()
    }


def without_layer(row: Row) -> str:
    """Equal for runs that differ by their seed and layer alone.

    Older rows hold no settings: they stand together, and apart from all others.
    """
    return digest(
        same_but_seed({k: v for k, v in row.settings.items() if k not in ("recipe", "layer")})
    )


def made_again(earlier: Layers, later: Layers) -> bool:
    return all(len(runs) <= len(later.get(name, ())) for name, runs in earlier.items())


def difference(scores: Sequence[float], base: Sequence[float]) -> str:
    """Of two means, with its standard error where both have several seeds."""
    over = f"{mean(scores) - mean(base):+.2f}"
    if min(len(scores), len(base)) < 2:
        return over
    error = math.sqrt(sum(stdev(each) ** 2 / len(each) for each in (scores, base)))
    return f"{over} ± {error:.2f}"


def average_of(runs: Sequence[Row], key: str) -> str:
    """Empty where a row does not tell: older ones hold BLEU alone."""
    found = [row.extra[key] for row in runs if key in row.extra]
    return f"{mean(found):.2f}" if len(found) == len(runs) else ""


def origins(groups: Mapping[str, Layers]) -> Iterable[str]:
    """Of each corpus what it is, where that is unclear, and what its rows were made by."""
    for corpus, layers in groups.items():
        rows = [row for runs in layers.values() for row in runs]
        about = ABOUT.get(corpus_of(rows[0]))
        made: dict[str, list[str]] = {}
        for row in rows:
            made.setdefault(f"{row.device}, torch {row.torch}", []).append(row.commit or "unknown")
        told = (
            f"{machine}, commit {' and '.join(sorted(set(commits)))}"
            for machine, commits in sorted(made.items())
        )
        yield f"{corpus}: {f'**{about}**; ' if about else ''}{'; '.join(told)}."


def signatures(groups: Mapping[str, Layers]) -> Iterable[str]:
    """How sacrebleu was asked, without which scores do not compare."""
    keys = {"bleu_signature": "BLEU", **{key: title for title, key in OTHERS.values()}}
    rows = [row for layers in groups.values() for runs in layers.values() for row in runs]
    yield "± is the standard error of the difference of means; signatures are sacrebleu's."
    for key, title in keys.items():
        every = {row.extra.get("signatures", {}).get(key) for row in rows} - {None}
        yield from (f"{title}: `{each}`" for each in sorted(every))


def notes(groups: Mapping[str, Layers]) -> Iterable[str]:
    """What the name of a recipe does not say: its changes, or that nobody wrote them down."""
    unknown = []
    for corpus, layers in groups.items():
        rows = [row for runs in layers.values() for row in runs]
        changes = dict.fromkeys(
            f"{each} ({row.layer})" if each.startswith("layer.") else each
            for row in rows
            for each in row.changes or ()
        )
        if changes:
            yield f"Changed from the recipe to the runs of {corpus}: {'; '.join(changes)}."
        if not all(row.settings for row in rows):  # all or none: see without_layer
            unknown.append(corpus)
    if unknown:
        yield (
            f"Rows of {' and '.join(unknown)} were recorded before rows held their settings: "
            "changes of the recipe are not told."
        )


def corpus_of(row: Row) -> str:
    told = row.settings.get("data", {}).get("corpus")
    return str(told or row.recipe.split("-")[0])  # recipes are called after their corpora


def recorded(layers: Layers) -> str:
    return max(row.recorded for runs in layers.values() for row in runs)


def bleu_of(row: Row) -> float:
    return float(row.extra["bleu"])


def average(rows: Sequence[Row]) -> float:
    return mean(map(bleu_of, rows))


if __name__ == "__main__":
    main(__doc__, "bleu", of_the_readme, scored, printed=whole)
