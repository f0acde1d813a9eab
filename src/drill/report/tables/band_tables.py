"""Tables of losses and of accuracy by word frequency, of calibration and of label vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from drill.language_modeling.evaluation.calibration import Calibration
from drill.language_modeling.evaluation.frequency_bands import FEW, SURE, Band, BandChange
from drill.report.analysis.label_vectors import Neighbour, Neighbours, NormBand
from drill.report.analysis.word_accuracy import AccuracyBand
from drill.report.results.evaluations import BANDS, Evaluation
from drill.report.tables import number_format as numbers
from drill.report.tables.markup import Cell, Table

AnyBand = TypeVar("AnyBand", Band, AccuracyBand)


@dataclass(frozen=True)
class TextBands:
    """Losses of models on the same text with the same vocabulary.

    Args:
        losses: of each model, from ``frequency_bands``.
        changes: of other models against the first of ``losses``, from ``compare_bands``.
        left_out: words that are in no band, such as ``<eos>``.
        bits_per_byte: of each model over the whole text, where its labels are subwords.
        calibration: of each model, from ``calibration``.
        norms: of each model with a label matrix, from ``label_norms``.
        nearest: of each model with a label matrix, from ``nearest_labels``.
    """

    losses: dict[str, Sequence[Band]]
    changes: dict[str, Sequence[BandChange]] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    bits_per_byte: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Calibration] = field(default_factory=dict)
    norms: dict[str, Sequence[NormBand]] = field(default_factory=dict)
    nearest: dict[str, Sequence[Neighbours]] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys([*self.losses, *self.changes]))


def bands_table(text: TextBands) -> Table:
    """Mean loss of each model in each band, and how much more than the first model it loses.

    The table says which words are left out: its last row is then not the loss of the whole text.
    """
    base, *compared = text.losses
    rows = []
    for label, line in _lines(text.losses, ("types", "tokens", "loss")):
        first = line[base]
        if first.tokens:
            changes = {
                name: 100 * (line[name].loss - first.loss) / first.loss if first.loss else None
                for name in compared
            }
            rows.append(
                [
                    *_counts(label, first.types, "tokens", first.tokens),
                    *((name, numbers.fixed(band.mean_loss, 3)) for name, band in line.items()),
                    *((f"{name}, %", numbers.change(value, 2)) for name, value in changes.items()),
                ]
            )
    notes = ["Mean loss in nats per token, by how often a token occurs in the training text."]
    if compared:
        notes = [f"{notes[0]} % is the change of loss against {base}; negative is better."]
    if text.left_out:
        notes.append(f"Without {' and '.join(text.left_out)}, in the row of all too.")
    if text.bits_per_byte:
        bits = ", ".join(f"{name} {value:.4f}" for name, value in text.bits_per_byte.items())
        notes.append(f"Bits per byte of the whole text: {bits}.")
    return Table.of(rows, notes, "Loss by training count")


def changes_table(text: TextBands) -> Table:
    """The change of each model's loss against the first one's, by types and by tokens."""
    base = next(iter(text.losses))
    rows = []
    for line in zip(*text.changes.values(), strict=True):
        first = line[0]
        if first.tokens:
            row = _counts(first.label, first.types, "tokens", first.tokens)
            for name, change in zip(text.changes, line, strict=True):
                by_types = change.by_types if change.by_types_is_meaningful else None
                row += [
                    (f"{name}, nats", numbers.change(change.nats, 3)),
                    (f"{name} by types, %", numbers.change(by_types, 2)),
                    (f"{name} by tokens, %", numbers.change(change.by_tokens, 2)),
                ]
            rows.append(row)
    note = (
        f"Change of loss against {base}, negative is better: in nats per token; in percent by "
        "types every word weighs the same, by tokens every occurrence."
    )
    unreliable = [
        f"{change.label}: {change.sure:,} of {change.types:,}"
        for change in next(iter(text.changes.values()), ())
        if not change.by_types_is_meaningful
    ]
    if unreliable:
        note += (
            f" By types is left out where {base} loses less than {SURE} nats a token on more than "
            f"{FEW:.0%} of the words, of which a ratio says nothing "
            f"({'; '.join(unreliable)} words)."
        )
    left_out = [f"Without {' and '.join(text.left_out)}."] if text.left_out else []
    return Table.of(rows, [note, *left_out], f"Loss against {base}")


def calibration_table(calibration: Mapping[str, Calibration]) -> Table:
    rows = [
        [
            ("run", name),
            ("tokens", numbers.count(measured.tokens)),
            ("calibration error", _share(measured.ece)),
            ("accuracy", _share(measured.accuracy)),
            ("confidence", _share(measured.confidence)),
        ]
        for name, measured in calibration.items()
    ]
    note = (
        "In percent. Confidence is the probability of the likeliest token, accuracy how often it "
        "is right, calibration error their mean difference over bins of confidence (ECE)."
    )
    return Table.of(rows, [note], "Calibration")


def norms_table(norms: Mapping[str, Sequence[NormBand]]) -> Table:
    rows = []
    for line in zip(*norms.values(), strict=True):
        row = [("training count", line[0].label), ("types", numbers.count(line[0].types))]
        for name, band in zip(norms, line, strict=True):
            row += [
                (f"{name}, E", numbers.fixed(band.embedding, 3)),
                (f"{name}, g_out(E)", numbers.fixed(band.output, 3)),
            ]
        rows.append(row)
    note = (
        "Mean norm of label vectors: E is the input embedding, g_out(E) the labels of the output "
        "layer, both less the mean label."
    )
    return Table.of(rows, [note], "Norms by training count")


def nearest_table(nearest: Mapping[str, Sequence[Neighbours]]) -> Table:

    def with_cosines(labels: Sequence[Neighbour]) -> str:
        return ", ".join(f"{name} {cosine:.2f}" for name, cosine in labels)

    rows = [
        [
            ("run", name),
            ("label", neighbours.label),
            ("training count", numbers.count(neighbours.count)),
            ("nearest in E", with_cosines(neighbours.embedding)),
            ("nearest in g_out(E)", with_cosines(neighbours.output)),
        ]
        for name, group in nearest.items()
        for neighbours in group
    ]
    notes = ["Nearest labels by cosine; the mean label is subtracted."]
    return Table.of(rows, notes, "Nearest labels")


def saved_accuracy(evaluations: Iterable[Evaluation]) -> dict[tuple[str, str], list[AccuracyBand]]:
    """Bands of the test that `drill evaluate` saved, by ``word`` or ``subword`` and search."""
    return {
        (
            key.removesuffix("_bands"),
            f"beam {row['beam']}, length penalty {row['length_penalty']:g}",
        ): [AccuracyBand(**band) for band in row[key]]
        for row in evaluations
        if row.get("split") == "test"
        for key in BANDS
        if key in row
    }


def accuracy_table(bands: Mapping[str, Sequence[AccuracyBand]], of: str = "word") -> Table:
    """F1 of each band in percent; ``of`` is ``word`` or ``subword``.

    One model has precision and recall too; of several, each has its difference to the first.
    """
    base, *compared = bands
    rows = []
    for label, line in _lines(bands, ("types", "wanted", "written", "matched")):
        first = line[base]
        if not any(band.wanted or band.written for band in line.values()):
            continue
        if compared:
            more = [
                (f"{name}, points", numbers.change(100 * (line[name].f1 - first.f1), 2))
                for name in compared
            ]
        else:
            more = [("precision", _share(first.precision)), ("recall", _share(first.recall))]
        counts = _counts(label, first.types, "wanted", first.wanted)
        rows.append(
            [*counts, *((f"{name} F1", _share(band.f1)) for name, band in line.items()), *more]
        )
    note = (
        f"Target {of}s found again in the translation of the same sentence, in percent, by how "
        f"often a {of} occurs in the target side of the training text. Types: distinct {of}s of "
        "the references; wanted: their occurrences there."
    )
    if compared:
        note += f" Points: F1 above that of {base}."
    return Table.of(rows, [note])


def _lines(
    models: Mapping[str, Sequence[AnyBand]], summed: Sequence[str]
) -> Iterator[tuple[str, dict[str, AnyBand]]]:
    """(label, band of each model) for each band, then for all together."""
    for line in zip(*models.values(), strict=True):
        yield line[0].label, dict(zip(models, line, strict=True))
    totals = {
        name: type(bands[0])(0, None, *(sum(getattr(b, key) for b in bands) for key in summed))
        for name, bands in models.items()
    }
    yield "all", totals


def _counts(label: str, types: int, name: str, occurrences: int) -> list[Cell]:
    counts = [("types", numbers.count(types)), (name, numbers.count(occurrences))]
    return [("training count", label), *counts]


def _share(value: float) -> str:
    """A share in percent."""
    return numbers.fixed(100 * value, 2)
