"""Tables of losses and of accuracy by word frequency."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from drill.analysis.frequency import Band, BandChange
from drill.analysis.word_accuracy import AccuracyBand
from drill.report import numbers
from drill.report.markup import Table
from drill.report.runs import ReportError
from drill.report.tables import columns


def by_text(
    bands: Mapping[str, Sequence[Band]], changes: Mapping[str, Sequence[BandChange]]
) -> list[tuple[dict[str, Sequence[Band]], dict[str, Sequence[BandChange]]]]:
    """The bands and the changes of each text: a table counts the types and tokens of one.

    Models have read the same text where all their bands hold equally many types and tokens.
    """
    _same_bands(list(bands.items()))
    texts: dict[Any, tuple[dict[str, Sequence[Band]], dict[str, Sequence[BandChange]]]] = {}
    for name, each in bands.items():
        texts.setdefault(_tokens(each), ({}, {}))[0][name] = each
    for name, change in changes.items():
        texts.setdefault(_tokens(change), ({}, {}))[1][name] = change
    return list(texts.values())


def bands_table(bands: Mapping[str, Sequence[Band]], left_out: Sequence[str] = ()) -> Table:
    """Mean loss of each model in each band, and how much more than the first model it loses.

    ``left_out`` are the words that no band holds: the table says so, since its last row is then
    not the loss of the whole text.
    """
    models = list(bands.items())
    if not models:
        return Table.of(columns(["training count"]), [])
    base, first = models[0]
    _same_bands(models)
    compared = [name for name, _ in models[1:]]
    for name, each in models[1:]:
        if _tokens(each) != _tokens(first):
            raise ReportError(
                f"bands: {name} read other tokens than {base}; give every text a table of its own"
            )
    names = ["training count", "types", "tokens", *bands, *(f"{name}, %" for name in compared)]
    lines = [(first[n].label, {name: each[n] for name, each in models}) for n in range(len(first))]
    lines.append(("all", {name: _whole(each) for name, each in models}))
    rows = []
    for label, line in lines:
        if not any(band.tokens for band in line.values()):
            continue
        more = (_percent(line[base].loss, line[name].loss) for name in compared)
        rows.append(
            [
                label,
                numbers.count(line[base].types),
                numbers.count(line[base].tokens),
                *(numbers.loss(band.mean_loss) for band in line.values()),
                *(numbers.change(value, 2) for value in more),
            ]
        )
    notes = ["Mean loss in nats per token, by how often a word occurs in the training text."]
    if compared:
        notes = [f"{notes[0]} % is how much more is lost than by {base}, over tokens."]
    if left_out:
        notes.append(f"Without {' and '.join(left_out)}, in the row of all too.")
    return Table.of(columns(names), rows, notes)


def changes_table(
    changes: Mapping[str, Sequence[BandChange]], left_out: Sequence[str] = ()
) -> Table:
    """How much more each model loses than the one it was compared with, both ways."""
    names = ["training count", "types", "tokens"]
    for name in changes:
        names += [f"{name} by types, %", f"{name} by tokens, %"]
    rows = []
    for line in zip(*changes.values(), strict=True):
        if line[0].tokens:
            row = [line[0].label, numbers.count(line[0].types), numbers.count(line[0].tokens)]
            for each in line:
                row += [numbers.change(each.by_types, 2), numbers.change(each.by_tokens, 2)]
            rows.append(row)
    note = "By types every word weighs the same, by tokens every occurrence; + loses more."
    left = [f"Without {' and '.join(left_out)}."] if left_out else []
    return Table.of(columns(names), rows, [note, *left])


def _starts(bands: Sequence[Band] | Sequence[AccuracyBand]) -> str:
    return ", ".join(str(band.low) for band in bands)


def accuracy_table(bands: Mapping[str, Sequence[AccuracyBand]], of: str = "word") -> Table:
    """F1 of the words of each band, in percent: for one model with its parts, else model by model.

    Behind several models stands how much each has gained on the first, in points. ``of`` is what
    the bands hold, a ``word`` or a ``subword``: the table says it.
    """
    models = list(bands.items())
    if not models:
        return Table.of(columns(["training count"]), [])
    _same_bands(models)
    base, first = models[0]
    for name, each in models[1:]:
        if _wanted(each) != _wanted(first):
            raise ReportError(
                f"accuracy: {name} was held against other references than {base}; translate the "
                "same text with every model"
            )
    compared = list(bands)[1:]
    parts = [f"{name}, points" for name in compared] if compared else ["precision", "recall"]
    names = ["training count", "types", "wanted", *(f"{name} F1" for name in bands), *parts]
    rows = []
    lines = [(first[n].label, {name: each[n] for name, each in models}) for n in range(len(first))]
    lines.append(("all", {name: _pooled(each) for name, each in models}))
    for label, line in lines:
        ours = line[base]
        if not any(band.wanted or band.written for band in line.values()):
            continue
        if compared:
            more = [numbers.change(100 * (line[name].f1 - ours.f1), 2) for name in compared]
        else:
            more = [_share(ours.precision), _share(ours.recall)]
        counts = [numbers.count(ours.types), numbers.count(ours.wanted)]
        rows.append([label, *counts, *(_share(band.f1) for band in line.values()), *more])
    note = (
        f"Target {of}s found again in the translation of the same sentence, in percent, by how "
        f"often a {of} occurs in the target side of the training text. Types: distinct {of}s of "
        "the references; wanted: their occurrences there."
    )
    if compared:
        note += f" Points: F1 above that of {base}."
    return Table.of(columns(names), rows, [note])


def _same_bands(models: Sequence[tuple[str, Sequence[Band] | Sequence[AccuracyBand]]]) -> None:
    if not models:
        return
    base, first = models[0]
    for name, each in models[1:]:
        if [band.low for band in each] != [band.low for band in first]:
            raise ReportError(
                f"bands: {name} has bands that start at {_starts(each)} and {base} at "
                f"{_starts(first)}; take the same edges for every model"
            )


def _wanted(bands: Sequence[AccuracyBand]) -> list[tuple[int, int]]:
    return [(band.types, band.wanted) for band in bands]


def _pooled(bands: Sequence[AccuracyBand]) -> AccuracyBand:
    keys = ("types", "wanted", "written", "matched")
    return AccuracyBand(0, None, *(sum(getattr(band, key) for band in bands) for key in keys))


def _share(value: float) -> str:
    return numbers.NOTHING if math.isnan(value) else f"{100 * value:.2f}"


def _tokens(bands: Sequence[Band] | Sequence[BandChange]) -> tuple[tuple[int, int], ...]:
    return tuple((band.types, band.tokens) for band in bands)


def _whole(bands: Sequence[Band]) -> Band:
    types, tokens = (sum(getattr(band, key) for band in bands) for key in ("types", "tokens"))
    return Band(0, None, types, tokens, sum(band.loss for band in bands))


def _percent(base: float, other: float) -> float | None:
    return 100 * (other - base) / base if base else None
