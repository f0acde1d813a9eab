"""Tables of trained models, from the rows of a ledger that `drill ledger add` wrote."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import mean, stdev

from drill.report import Row
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.results.runs import digest, same_but_seed
from drill.report.tables.markup import markdown_table

# -- translators ----------------------------------------------------------------------------------

BASE = "tied"
SCORES = {"bleu": "BLEU", "tokenised_bleu": "tokenised BLEU", "chrf": "chrF"}
ABOUT = {
    "europarl": "**813,000 pairs of Europarl and news, not the 4.5M pairs of WMT14, so its BLEU "
    "does not compare with the paper's**; ",
}
"""Corpora whose name or test text may be taken for another's."""

Layers = Mapping[str, Sequence[Row]]
"""Runs that may be compared, one per seed, by layer."""


def comparisons(rows: Sequence[Row]) -> dict[str, Layers]:
    """Translators by corpus and layer: tied weights first, then by BLEU.

    Only runs that differ by seed and layer alone are compared. Of a layer its latest settings
    count, and of a seed its latest run. A corpus that was trained with several other settings has a
    number behind its name; settings that were run again later, with as many seeds, are left out.
    """
    found: dict[str, Layers] = {}
    scored = [row for row in rows if "bleu" in row.extra]
    for corpus, own in groupby(sorted(scored, key=corpus_of), corpus_of):
        by_settings: dict[str, list[Row]] = {}
        for row in sorted(own, key=lambda row: row.recorded):
            same = _without_layer(row)
            by_settings[same] = [*by_settings.pop(same, ()), row]  # in the order of their last
        groups: list[Layers] = []
        for each in by_settings.values():
            later = _latest(each)
            groups = [*(group for group in groups if not _replaces(later, group)), later]
        for number, layers in enumerate(groups, start=1):
            names = sorted(layers, key=lambda name: (name != BASE, mean_bleu(layers[name])))
            label = f"{corpus} ({number})" if len(groups) > 1 else corpus
            found[label] = {name: layers[name] for name in names}
    return found


def _without_layer(row: Row) -> str:
    """Equal for runs that differ by seed and layer alone; old rows have no settings."""
    rest = {k: v for k, v in row.settings.items() if k not in ("recipe", "layer")}
    return digest(same_but_seed(rest))


def _latest(rows: Sequence[Row]) -> Layers:
    """The last settings of every layer, of rows in the order they were recorded."""
    settings = {row.layer: row.settings_digest for row in rows}
    own = [row for row in rows if row.settings_digest == settings[row.layer]]
    last = {(row.layer, row.seed): row for row in own}
    return {name: [last[key] for key in sorted(last) if key[0] == name] for name in settings}


def _replaces(later: Layers, earlier: Layers) -> bool:
    return all(len(runs) <= len(later.get(name, ())) for name, runs in earlier.items())


def corpus_of(row: Row) -> str:
    return str(row.settings.get("data", {}).get("corpus") or str(row.recipe).split("-")[0])


def mean_bleu(rows: Sequence[Row]) -> float:
    return mean(row.extra["bleu"] for row in rows)


def bleu(groups: Mapping[str, Layers], origins: bool = False) -> Iterator[str]:
    """BLEU of every corpus and layer, below it how, and by ``origins`` where it was computed."""
    _, *others = SCORES
    lines = [["corpus", "layer", "parameters", "BLEU of each seed", "mean", "over tied"]]
    lines[0] += (SCORES[key] for key in others)
    for corpus, layers in groups.items():
        for name, runs in layers.items():
            base = layers.get(BASE, ()) if name != BASE else ()
            over = _bleu_difference(runs, base) if base else ""
            scores = ", ".join(f"{row.extra['bleu']:.2f}" for row in runs)
            line = [corpus, name, f"{runs[0].parameters:,}", scores, f"{mean_bleu(runs):.2f}", over]
            lines.append([*line, *(_mean_score(runs, key) for key in others)])
    yield from markdown_table(lines, "llr")
    for note in (*(_origins(groups) if origins else ()), *_signatures(groups), *_changes(groups)):
        yield from ("", note)


def _bleu_difference(runs: Sequence[Row], base: Sequence[Row]) -> str:
    """Of two means, with its standard error where both have several seeds."""
    over = f"{mean_bleu(runs) - mean_bleu(base):+.2f}"
    if min(len(runs), len(base)) < 2:
        return over
    scores = ([row.extra["bleu"] for row in each] for each in (runs, base))
    return f"{over} ± {math.sqrt(sum(stdev(each) ** 2 / len(each) for each in scores)):.2f}"


def _all(layers: Layers) -> list[Row]:
    return [row for runs in layers.values() for row in runs]


def _mean_score(runs: Sequence[Row], key: str) -> str:
    """Empty where a row lacks it: old rows have BLEU alone."""
    found = [row.extra[key] for row in runs if key in row.extra]
    return f"{mean(found):.2f}" if len(found) == len(runs) else ""


def _origins(groups: Mapping[str, Layers]) -> Iterator[str]:
    for corpus, layers in groups.items():
        rows = _all(layers)
        found = {(f"{row.device}, torch {row.torch}", row.commit or "unknown") for row in rows}
        made = (
            f"{machine}, commit {' and '.join(commit for _, commit in each)}"
            for machine, each in groupby(sorted(found), itemgetter(0))
        )
        yield f"{corpus}: {ABOUT.get(corpus_of(rows[0]), '')}{'; '.join(made)}."


def _signatures(groups: Mapping[str, Layers]) -> Iterator[str]:
    rows = [row for layers in groups.values() for row in _all(layers)]
    yield "± is the standard error of the difference of means; signatures are sacrebleu's."
    for key, title in SCORES.items():
        signature = f"{key.removesuffix('_bleu')}_signature"
        every = {row.extra.get("signatures", {}).get(signature) for row in rows} - {None}
        yield from (f"{title}: `{each}`" for each in sorted(every))


def _changes(groups: Mapping[str, Layers]) -> Iterator[str]:
    """What the runs changed of their recipes; old rows do not say."""
    for corpus, layers in groups.items():
        changes = dict.fromkeys(
            f"{each} ({row.layer})" if each.startswith("layer.") else each
            for row in _all(layers)
            for each in row.changes or ()
        )
        if changes:
            yield f"Changed from the recipe to the runs of {corpus}: {'; '.join(changes)}."


def frequency_bands(corpus: str, layers: Layers, kind: str) -> Iterator[str]:
    """F1 of every layer by how often training has a label: means over seeds and their spread.

    Labels are of a ``kind``, subword or word, as `drill evaluate --bands` found them.
    """
    found = {name: [b for row in runs if (b := _bands(row, kind))] for name, runs in layers.items()}
    found = {name: each for name, each in found.items() if each}
    if not found:
        return
    first = next(iter(found.values()))[0]
    if len({str([(x.low, x.wanted) for x in y]) for each in found.values() for y in each}) > 1:
        raise SystemExit(f"{corpus}: layers have {kind}s of different references; evaluate again")
    others = [name for name in found if BASE in found and name != BASE]
    lines = [["training count", "types", "wanted", *found, *(f"{x}, points" for x in others)]]
    for at, band in enumerate(first):
        if band.wanted:
            f1 = {name: [100 * bands[at].f1 for bands in each] for name, each in found.items()}
            spread = {n: f" ± {stdev(each):.1f}" if len(each) > 1 else "" for n, each in f1.items()}
            line = [band.label, f"{band.types:,}", f"{band.wanted:,}"]
            line += [f"{mean(each):.1f}{spread[name]}" for name, each in f1.items()]
            lines.append([*line, *(f"{mean(f1[x]) - mean(f1[BASE]):+.1f}" for x in others)])
    seeds = " and ".join(str(each) for each in sorted({len(each) for each in found.values()}))
    of = "one seed" if seeds == "1" else f"mean of {seeds} seeds ± their standard deviation"
    about = f"{kind.capitalize()}s of {corpus} found again in the translations, F1 in percent by "
    about += f"how often training asks for them; {of}."
    yield from ("", about, "", *markdown_table(lines))


def _bands(row: Row, kind: str) -> list[AccuracyBand]:
    """Of the test text, searched as its BLEU was; [] where it was not evaluated.

    Old rows may call a user's own file, which has a ``reference``, ``test`` too.
    """
    key, search = f"{kind}_bands", ("beam", "length_penalty")
    found = [
        each[key]
        for each in row.evaluations
        if each.get("split") == "test" and "reference" not in each and key in each
        if all(each.get(name) == row.extra.get(name) for name in search)
    ]
    return [AccuracyBand(**band) for bands in found[-1:] for band in bands]


def loss_gaps(corpus: str, layers: Layers) -> Iterator[str]:
    """Loss over that of tied weights of the same seed, at steps after which all validated.

    Nats per token, mean over seeds and each of them, in validation and in training.
    """

    def losses(row: Row, column: int) -> dict[int, float]:
        found = ((each[0], each[column]) for each in row.validations if len(each) > column)
        return {int(step): math.log(value) for step, value in found if step and value}

    def gap(name: str, step: int, column: int) -> str:
        tied = {row.seed: losses(row, column).get(step) for row in layers[BASE]}
        pairs = [(losses(row, column).get(step), tied.get(row.seed)) for row in layers[name]]
        found = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        each = ", ".join(f"{value:+.3f}" for value in found)
        return f"{mean(found):+.3f} ({each})" if found else ""

    common = sorted(set.intersection(*(set(losses(row, 1)) for row in _all(layers))))
    others = [name for name in layers if name != BASE]
    if BASE not in layers or not others or not common:
        return
    texts = {"validation": 1, "training": 2}
    lines = [[f"{corpus}, step", *(f"{name}, {text}" for name in others for text in texts)]]
    for step in common:
        gaps = (gap(name, step, column) for name in others for column in texts.values())
        lines.append([f"{step:,}", *gaps])
    yield from ("", f"Loss of {corpus} over that of tied weights, nats per token:", "")
    yield from markdown_table(lines, "r")


def translators(rows: Sequence[Row], gaps: bool = False) -> Iterator[str]:
    """All that a ledger says about translators."""
    groups = comparisons(rows)
    yield from bleu(groups, origins=True)
    for corpus, layers in groups.items():
        for kind in ("subword", "word"):
            yield from frequency_bands(corpus, layers, kind)
        if gaps:
            yield from loss_gaps(corpus, layers)
