"""Tables of losses and of accuracy by word frequency."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drill.errors import ReportError
from drill.report.analysis.frequency_bands import FEW, SURE, Band, BandChange
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.tables import number_format as numbers
from drill.report.tables.markup import Table
from drill.report.tables.result_tables import columns


@dataclass(frozen=True)
class TextBands:
    """Losses of models on the same text with the same vocabulary.

    Args:
        losses: of each model, from ``frequency_bands``.
        changes: of other models against the first of ``losses``, from ``compare_bands``.
        left_out: words that are in no band, such as ``<eos>``.
    """

    losses: Mapping[str, Sequence[Band]]
    changes: Mapping[str, Sequence[BandChange]] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.losses:
            raise ReportError("bands: a text has no model; give the losses of at least one")

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys([*self.losses, *self.changes]))


def bands_table(text: TextBands) -> Table:
    """Mean loss of each model in each band, and how much more than the first model it loses.

    The table says which words are left out: its last row is then not the loss of the whole text.
    """
    bands = text.losses
    models = list(bands.items())
    base, first = models[0]
    _same_bands(models)
    compared = [name for name, _ in models[1:]]
    for name, each in models[1:]:
        if _tokens(each) != _tokens(first):
            raise ReportError(
                f"bands: {name} read other tokens than {base}; give each text its own TextBands"
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
        notes = [f"{notes[0]} % is the change of loss against {base}; negative is better."]
    if text.left_out:
        notes.append(f"Without {' and '.join(text.left_out)}, in the row of all too.")
    return Table.of(columns(names), rows, notes)


def changes_table(text: TextBands) -> Table:
    """The change of each model's loss against the first one's, by types and by tokens."""
    base = next(iter(text.losses))
    names = ["training count", "types", "tokens"]
    for name in text.changes:
        names += [f"{name}, nats", f"{name} by types, %", f"{name} by tokens, %"]
    rows = []
    for line in zip(*text.changes.values(), strict=True):
        if line[0].tokens:
            row = [line[0].label, numbers.count(line[0].types), numbers.count(line[0].tokens)]
            for each in line:
                by_types = each.by_types if each.by_types_is_meaningful else None
                row += [numbers.change(each.nats, 3), numbers.change(by_types, 2)]
                row.append(numbers.change(each.by_tokens, 2))
            rows.append(row)
    note = (
        f"Change of loss against {base}, negative is better: in nats per token; in percent by "
        "types every word weighs the same, by tokens every occurrence."
    )
    sure = [
        f"{each.label}: {each.sure:,} of {each.types:,}"
        for each in next(iter(text.changes.values()), ())
        if not each.by_types_is_meaningful
    ]
    if sure:
        note += (
            f" By types is left out where {base} loses less than {SURE} nats a token on more than "
            f"{FEW:.0%} of the words, of which a ratio says nothing ({'; '.join(sure)} words)."
        )
    left = [f"Without {' and '.join(text.left_out)}."] if text.left_out else []
    return Table.of(columns(names), rows, [note, *left])


def by_references(
    bands: Mapping[str, Sequence[AccuracyBand]],
) -> list[dict[str, Sequence[AccuracyBand]]]:
    """Translators grouped by references: those with equal counts in all bands."""
    _same_bands(list(bands.items()))
    texts: dict[tuple[tuple[int, int], ...], dict[str, Sequence[AccuracyBand]]] = {}
    for name, each in bands.items():
        texts.setdefault(_wanted(each), {})[name] = each
    return list(texts.values())


def accuracy_table(bands: Mapping[str, Sequence[AccuracyBand]], of: str = "word") -> Table:
    """F1 of the words of each band in percent.

    One model has precision and recall too; of several, each has its difference to the first.

    Args:
        of: ``word`` or ``subword``.
    """
    models = list(bands.items())
    if not models:
        return Table.of(columns(["training count"]), [])
    _same_bands(models)
    base, first = models[0]
    for name, each in models[1:]:
        if _wanted(each) != _wanted(first):
            raise ReportError(
                f"accuracy: {name} was scored against other references than {base}; translate the "
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


def _starts(bands: Sequence[Band] | Sequence[AccuracyBand]) -> str:
    return ", ".join(str(band.low) for band in bands)


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


def _wanted(bands: Sequence[AccuracyBand]) -> tuple[tuple[int, int], ...]:
    return tuple((band.types, band.wanted) for band in bands)


def _pooled(bands: Sequence[AccuracyBand]) -> AccuracyBand:
    keys = ("types", "wanted", "written", "matched")
    return AccuracyBand(0, None, *(sum(getattr(band, key) for band in bands) for key in keys))


def _share(value: float) -> str:
    return numbers.NOTHING if math.isnan(value) else f"{100 * value:.2f}"


def _tokens(bands: Sequence[Band]) -> tuple[tuple[int, int], ...]:
    return tuple((band.types, band.tokens) for band in bands)


def _whole(bands: Sequence[Band]) -> Band:
    types, tokens = (sum(getattr(band, key) for band in bands) for key in ("types", "tokens"))
    return Band(0, None, types, tokens, sum(band.loss for band in bands))


def _percent(base: float, other: float) -> float | None:
    return 100 * (other - base) / base if base else None
