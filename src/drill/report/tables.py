"""Tables of runs, of ledgers and of frequency bands; ``markup.Table`` writes them down."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

from drill.analysis.frequency import Band, BandChange
from drill.report import numbers
from drill.report.ledger import Row
from drill.report.markup import Column, Table
from drill.report.paper import FINETUNED, PAPER
from drill.report.plot import linear_ticks, log_ticks
from drill.report.runs import ReportError, RunSummary

Result = RunSummary | Row

GAP_NOTE = (
    "Paper and gap are of validation / test; the gap is ours less the paper's, ours divided by all "
    "tokens as the paper's are."
)
TUNED_NOTE = "ft: the paper has this model finetuned only, which is no fair comparison."
SPREAD_NOTE = (
    "± is half the range of two runs, the standard deviation of more; perplexities are of runs "
    "that have been tested, where there are any."
)
SHOWN_EPOCHS = 12  # up to here all of them


# -- results --------------------------------------------------------------------------------------


def runs_table(results: Sequence[Result]) -> Table:
    """One row a run, the paper's figures beside ours where the recipe is one of its rows."""
    names = ["run", "layer", "parameters", "seed", "epochs", "valid", "test"]
    names += ["paper", "gap", "time", "device"]
    rows = [
        [
            each.name,
            each.layer or "",
            numbers.count(each.parameters),
            "" if each.seed is None else str(each.seed),
            numbers.count(each.epochs),
            numbers.perplexity(each.valid),
            numbers.perplexity(each.test),
            _paper(each.recipe),
            _gap(each.recipe, [each]),
            numbers.duration(each.seconds),
            each.device or "",
        ]
        for each in results
    ]
    return Table.of(_columns(names), rows, _paper_notes(results))


def recipes_table(results: Sequence[Result]) -> Table:
    """One row for all runs that differ by their seed alone: means and how far they spread."""
    names = ["recipe", "layer", "parameters", "seeds", "runs", "epochs", "valid", "test"]
    names += ["paper", "gap", "time"]
    groups = grouped(results)
    labels = _labels(groups)
    rows = []
    for key, group in groups.items():
        first = group[0]
        used = [each for each in group if each.test is not None] or group
        of_all = "" if len(used) == len(group) else f" of {len(group)}"
        epochs = sorted({each.epochs for each in used})
        rows.append(
            [
                labels[key],
                first.layer or "",
                numbers.count(first.parameters),
                ", ".join(str(each.seed) for each in used if each.seed is not None),
                f"{len(used)}{of_all}",
                " to ".join(numbers.count(each) for each in dict.fromkeys([epochs[0], epochs[-1]])),
                spread(_known(each.valid for each in used)),
                spread(_known(each.test for each in used)),
                _paper(first.recipe),
                _gap(first.recipe, used),
                numbers.duration(_mean(each.seconds for each in used)),
            ]
        )
    several = [SPREAD_NOTE] if any(len(group) > 1 for group in groups.values()) else []
    return Table.of(_columns(names), rows, [*several, *_paper_notes(results)])


def ledger_table(rows: Sequence[Row]) -> Table:
    """Every row of a ledger, with whatever other figures were recorded."""
    extra = list(dict.fromkeys(key for row in rows for key in row.extra))
    names = ["run", "recipe", "layer", "seed", "epochs", "valid", "test", "paper", "gap", *extra]
    names += ["time", "device", "commit", "recorded", "note"]
    lines = [
        [
            row.name,
            row.recipe or "",
            row.layer or "",
            "" if row.seed is None else str(row.seed),
            numbers.count(row.epochs),
            numbers.perplexity(row.valid),
            numbers.perplexity(row.test),
            _paper(row.recipe),
            _gap(row.recipe, [row]),
            *(_figure(row.extra.get(key, "")) for key in extra),
            numbers.duration(row.seconds),
            row.device or "",
            row.commit or "",
            row.recorded[:16].replace("T", " "),
            row.note,
        ]
        for row in rows
    ]
    return Table.of(_columns(names), lines, _paper_notes(rows))


def grouped(results: Sequence[Result]) -> dict[tuple[str | None, str], list[Result]]:
    """Runs of one recipe and one set of settings, whatever the seed; in order of appearance."""
    groups: dict[tuple[str | None, str], list[Result]] = {}
    for each in results:
        settings = each.name if each.recipe is None else each.settings_digest
        groups.setdefault((each.recipe, settings), []).append(each)
    return groups


def spread(values: Sequence[float]) -> str:
    """Mean and spread: a standard deviation from three values on, half the range of two."""
    if len(values) < 2:
        return numbers.perplexity(values[0]) if values else ""
    half = (max(values) - min(values)) / 2
    return f"{numbers.perplexity(mean(values))} ± {half if len(values) == 2 else stdev(values):.2f}"


def _labels(groups: Mapping[tuple[str | None, str], list[Result]]) -> dict[object, str]:
    recipes = [recipe for recipe, _ in groups]
    labels: dict[object, str] = {}
    for (recipe, settings), group in groups.items():
        label = group[0].name if recipe is None else recipe
        changed = recipe is not None and recipes.count(recipe) > 1
        labels[recipe, settings] = f"{label}, settings {settings[:6]}" if changed else label
    return labels


def _paper(recipe: str | None) -> str:
    """Validation / test of the paper, where it has this model or at least a finetuned one."""
    if paper := PAPER.get(recipe or ""):
        return " / ".join(map(str, paper))
    tuned = PAPER.get(f"{recipe}{FINETUNED}")
    return "" if tuned is None else f"{' / '.join(map(str, tuned))} ft"


def _gap(recipe: str | None, results: Sequence[Result]) -> str:
    paper = PAPER.get(recipe or "")
    if paper is None:
        return ""
    valid = _mean(each.valid_published for each in results)
    test = _mean(each.test_published for each in results)
    pairs = zip((valid, test), paper, strict=True)
    return " / ".join(numbers.change(ours - theirs) for ours, theirs in pairs if ours is not None)


def _paper_notes(results: Sequence[Result]) -> list[str]:
    notes = [GAP_NOTE] if any(_gap(each.recipe, [each]) for each in results) else []
    tuned = any(_paper(each.recipe).endswith(" ft") for each in results)
    return [*notes, TUNED_NOTE] if tuned else notes


# -- curves ---------------------------------------------------------------------------------------


def epochs_table(runs: Sequence[RunSummary]) -> Table:
    """Validation perplexity of every run at a few epochs."""
    epochs = selected_epochs(sorted({point.epoch for run in runs for point in run.curve}))
    rows = []
    for run in runs:
        found = {point.epoch: point.valid for point in run.curve}
        rows.append([run.name, *(numbers.perplexity(found.get(epoch)) for epoch in epochs)])
    return Table.of(_columns(["run", *map(str, epochs)]), rows)


def selected_epochs(epochs: Sequence[int]) -> list[int]:
    """All of a few; of many those at 1, 2, 3, 5 and their tens and hundreds, and the last."""
    if len(epochs) <= SHOWN_EPOCHS:
        return list(epochs)
    round_ones = {digit * 10**power for power in range(7) for digit in (1, 2, 3, 5)}
    return [epoch for epoch in epochs if epoch in round_ones or epoch == epochs[-1]]


def milestones(best: float) -> list[float]:
    """Round perplexities on the way down to ``best``, the nearer the closer together."""
    far = [value for value, _ in log_ticks(1.25 * best, 4.0 * best)]
    near = [value for value, _ in linear_ticks(best, 1.25 * best, 8)]
    return sorted({*far[:: max(1, len(far) // 3)], *near}, reverse=True)


def time_table(runs: Sequence[RunSummary], perplexities: Sequence[float]) -> Table:
    """How long each run took to reach each perplexity; one that no run reached is left out."""
    rows = []
    for run in runs:
        reached = [seconds_to(run, wanted) for wanted in perplexities]
        rows.append([run.name, *map(numbers.duration, reached)])
    return Table.of(_columns(["run", *(f"{wanted:,g}" for wanted in perplexities)]), rows)


def seconds_to(run: RunSummary, perplexity: float) -> float | None:
    """Seconds to the first epoch at or below a validation perplexity; None if there is none."""
    for point in run.curve:
        if point.valid <= perplexity and point.elapsed is not None:
            return point.elapsed
    return None


# -- bands ----------------------------------------------------------------------------------------


def bands_table(bands: Mapping[str, Sequence[Band]]) -> Table:
    """Mean loss of each model in each band, and how much more than the first model it loses."""
    models = list(bands.items())
    if not models:
        return Table.of(_columns(["training count"]), [])
    base, first = models[0]
    for name, each in models[1:]:
        if [band.low for band in each] != [band.low for band in first]:
            raise ReportError(
                f"bands: {name} has bands that start at {_starts(each)} and {base} at "
                f"{_starts(first)}; take the same edges for every model"
            )
    other = [name for name, each in models if _tokens(each) != _tokens(first)]
    compared = [name for name, _ in models[1:] if name not in other]
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
    notes += [f"{name} read other tokens than {base}, so they are not compared." for name in other]
    return Table.of(_columns(names), rows, notes)


def changes_table(changes: Mapping[str, Sequence[BandChange]]) -> Table:
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
    return Table.of(_columns(names), rows, [note])


def _starts(bands: Sequence[Band]) -> str:
    return ", ".join(str(band.low) for band in bands)


def _tokens(bands: Sequence[Band]) -> list[tuple[int, int]]:
    return [(band.types, band.tokens) for band in bands]


def _whole(bands: Sequence[Band]) -> Band:
    types, tokens = (sum(getattr(band, key) for band in bands) for key in ("types", "tokens"))
    return Band(0, None, types, tokens, sum(band.loss for band in bands))


def _percent(base: float, other: float) -> float | None:
    return 100 * (other - base) / base if base else None


# -- cells ----------------------------------------------------------------------------------------

TEXTS = {"run", "recipe", "layer", "seeds", "device", "commit", "recorded", "note"}
TEXTS |= {"training count"}


def _columns(names: Iterable[str]) -> list[Column]:
    return [Column(name, numeric=name not in TEXTS) for name in names]


def _figure(value: object) -> str:
    return numbers.perplexity(value) if isinstance(value, float) else str(value)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return mean(known) if known else None
