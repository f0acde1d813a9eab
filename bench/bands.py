"""Which labels translators get right, by how often training has asked for them.

From what `drill evaluate RUN --split test --words` kept and `drill record` took into the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from drill.report import Row
from drill.report.analysis.word_accuracy import AccuracyBand


def band_table(
    corpus: str, layers: Mapping[str, Sequence[Row]], kind: str, base: str
) -> Iterable[str]:
    """F1 of every layer in every band, the mean over its seeds and their spread.

    ``kind`` is subword, what the output layer chooses among, or word. Nothing where no run of the
    corpus has such bands.
    """
    found = {name: [bands_of(row, kind) for row in runs] for name, runs in layers.items()}
    told = {name: [bands for bands in each if bands] for name, each in found.items()}
    told = {name: each for name, each in told.items() if each}
    if not told:
        return
    first = next(iter(told.values()))[0]
    for name, each in told.items():
        for bands in each:
            if wanted(bands) != wanted(first):
                raise SystemExit(
                    f"{corpus}: the {kind}s of {name} were held against other references than "
                    "those of the first layer; evaluate all runs on the same text"
                )
    compared = [name for name in told if base in told and name != base]
    titles = ["training count", "types", "wanted", *told, *(f"{name}, points" for name in compared)]
    yield ""
    yield (
        f"{kind.capitalize()}s of {corpus} found again in the translations, F1 in percent by how "
        f"often training asks for them; {seeds(told)}."
    )
    yield ""
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(titles) - 1)}"
    for place, band in enumerate(first):
        if not band.wanted:
            continue
        f1 = {name: [100 * bands[place].f1 for bands in each] for name, each in told.items()}
        cells = [f"{mean(each):.1f}{spread(each)}" for each in f1.values()]
        cells += [f"{mean(f1[name]) - mean(f1[base]):+.1f}" for name in compared]
        yield f"| {band.label} | {band.types:,} | {band.wanted:,} | {' | '.join(cells)} |"


def bands_of(row: Row, kind: str) -> list[AccuracyBand]:
    """Of the test, searched as its BLEU was; [] where nobody has looked.

    Older ledgers may hold a file of one's own, with its ``reference``, that was called ``test``.
    """
    found: list[dict[str, Any]] = []
    for each in row.evaluations:
        search = all(each.get(key) == row.extra.get(key) for key in ("beam", "length_penalty"))
        tested = each.get("split") == "test" and "reference" not in each
        if search and tested and f"{kind}_bands" in each:
            found = each[f"{kind}_bands"]
    return [AccuracyBand(**band) for band in found]


def wanted(bands: Sequence[AccuracyBand]) -> list[tuple[int, int, int]]:
    return [(band.low, band.types, band.wanted) for band in bands]


def seeds(told: Mapping[str, Sequence[object]]) -> str:
    counts = {len(each) for each in told.values()}
    if len(counts) > 1:
        return ", ".join(f"{len(each)} seeds of {name}" for name, each in told.items())
    count = counts.pop()
    return "one seed" if count == 1 else f"mean of {count} seeds ± their standard deviation"


def spread(values: Sequence[float]) -> str:
    return f" ± {stdev(values):.1f}" if len(values) > 1 else ""
