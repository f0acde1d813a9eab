"""Tables of runs and of ledgers."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import TypeVar

from drill.report.results.evaluations import ADAPTIVE, names_weights, paired
from drill.report.results.ledger import Row
from drill.report.results.paper import FINETUNED, PAPER, PAPER_BLEU, Perplexities
from drill.report.results.run_files import as_finite
from drill.report.results.runs import RunSummary
from drill.report.tables import number_format as numbers
from drill.report.tables.markup import Column, Table
from drill.report.tables.number_format import linear_ticks, log_ticks

Result = RunSummary | Row
T = TypeVar("T", RunSummary, Row, Result)

GAP_NOTE = (
    "Paper and gap are of validation / test; the gap is ours less the paper's, ours divided by all "
    "tokens as the paper's are."
)
ADAPTIVE_NOTE = (
    "Paper and gap are of validation / test; the gap is ours less the paper's. Ours are divided as "
    "the published ones are: with a cache by all tokens, in dynamic evaluation by those predicted."
)
WEIGHTLESS_NOTE = "Evaluations without a fingerprint of their weights have no row."
PREDICTED_ONLY = ("dynamic",)  # kinds whose published figures divide by N - 1
TUNED_NOTE = "ft: the paper has a finetuned model only."
BLEU_NOTE = (
    "Paper and gap of a translator are of BLEU over tokenised text, of the test; the gap is ours "
    "less the paper's."
)
SPREAD_NOTE = (
    "± is half the range of two runs, the standard deviation of more; perplexities are of runs "
    "that have been tested, where there are any."
)
SHOWN_EPOCHS = 12  # of more, a selection


# -- results --------------------------------------------------------------------------------------


def runs_table(results: Sequence[Result]) -> Table:
    """One row per run, with the paper's figures where it has the recipe."""
    bleu = _any_bleu(results)
    names = ["run", "layer", "parameters", "seed", "epochs", "valid", "test", *bleu]
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
            *(numbers.perplexity(_bleu(each)) for _ in bleu),
            paper_figures(each.recipe),
            paper_gap(each.recipe, [each]),
            numbers.duration(each.seconds),
            each.device or "",
        ]
        for each in results
    ]
    notes = [*paper_notes(rows, names.index("paper")), *change_notes(results)]
    return Table.of(columns(names), rows, notes)


def recipes_table(results: Sequence[Result]) -> Table:
    """One row for all runs that differ by their seed alone: means and spread."""
    bleu = _any_bleu(results)
    names = ["recipe", "layer", "parameters", "seeds", "runs", "epochs", "valid", "test", *bleu]
    names += ["paper", "gap", "time"]
    groups = grouped(results)
    labels = group_labels(groups)
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
                *(spread(_known(map(_bleu, used))) for _ in bleu),
                paper_figures(first.recipe),
                paper_gap(first.recipe, used),
                numbers.duration(_mean(each.seconds for each in used)),
            ]
        )
    several = [SPREAD_NOTE] if any(len(group) > 1 for group in groups.values()) else []
    return Table.of(columns(names), rows, [*several, *paper_notes(rows, names.index("paper"))])


def ledger_table(rows: Sequence[Row]) -> Table:
    """Every row of a ledger, with all further figures."""
    extra = list(
        dict.fromkeys(key for row in rows for key, value in row.extra.items() if not _nested(value))
    )
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
            paper_figures(row.recipe),
            paper_gap(row.recipe, [row]),
            *(_figure(row.extra.get(key, "")) for key in extra),
            numbers.duration(row.seconds),
            row.device or "",
            row.commit or "",
            row.recorded[:16].replace("T", " "),
            row.note,
        ]
        for row in rows
    ]
    notes = [*paper_notes(lines, names.index("paper")), *change_notes(rows)]
    return Table.of(columns(names), lines, notes)


def evaluations_table(results: Sequence[Result]) -> Table:
    """Perplexities of dynamic evaluation and of the cache, by `drill evaluate`.

    Both of a row have the same weights and settings; see ``paired``.
    """
    names = ["run", "layer", "evaluation", "settings", "valid", "test", "paper", "gap"]
    rows = []
    for each in results:
        for kind in ADAPTIVE:
            if (pair := paired(each.evaluations, kind)) is None:
                continue
            key = "perplexity" if kind in PREDICTED_ONLY else "published"
            valid, test = (as_finite((found or {}).get(key)) for found in pair)
            rows.append(
                [
                    each.name,
                    each.layer or "",
                    kind,
                    pair.settings,
                    *(
                        numbers.perplexity(as_finite((found or {}).get("perplexity")))
                        for found in pair
                    ),
                    paper_figures(each.recipe, f"+{kind}"),
                    less_paper(valid, test, PAPER.get(f"{each.recipe}+{kind}")),
                ]
            )
    notes = paper_notes(rows, names.index("paper"), ADAPTIVE_NOTE)
    if any(not names_weights(found) for each in results for found in each.evaluations):
        notes.append(WEIGHTLESS_NOTE)
    return Table.of(columns(names), rows, notes)


def change_notes(results: Iterable[Result]) -> list[str]:
    """A sentence for all runs with the same changes of their recipes."""
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for each in results:
        if each.changes:
            names.setdefault(tuple(each.changes), {})[each.name] = None
    return [
        f"Changed from the recipe to the run, {', '.join(runs)}: {'; '.join(changes)}."
        for changes, runs in names.items()
    ]


def grouped(results: Sequence[T]) -> dict[tuple[str | None, str], list[T]]:
    """Runs of one recipe with the same settings, whatever the seed; in order of appearance."""
    groups: dict[tuple[str | None, str], list[T]] = {}
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


def group_labels(
    groups: Mapping[tuple[str | None, str], Sequence[Result]],
) -> dict[tuple[str | None, str], str]:
    """A name for each of ``grouped``: the recipe, with its settings where several have it."""
    recipes = [recipe for recipe, _ in groups]
    labels = {}
    for (recipe, settings), group in groups.items():
        label = group[0].name if recipe is None else recipe
        changed = recipe is not None and recipes.count(recipe) > 1
        labels[recipe, settings] = f"{label}, settings {settings[:6]}" if changed else label
    return labels


def _any_bleu(results: Sequence[Result]) -> list[str]:
    """The heading of a column for BLEU, where there is a translator."""
    return ["BLEU"] if any(_bleu(each) is not None for each in results) else []


def _bleu(each: Result) -> float | None:
    return each.bleu if isinstance(each, RunSummary) else as_finite(each.extra.get("bleu"))


def _tokenised_bleu(each: Result) -> float | None:
    scores = each.scores if isinstance(each, RunSummary) else each.extra
    return as_finite(scores.get("tokenised_bleu"))


def paper_figures(recipe: str | None, added: str = "") -> str:
    """Validation / test of the paper, where it has this model or at least a finetuned one.

    Of a translator its BLEU.
    """
    if bleu := PAPER_BLEU.get(f"{recipe}{added}"):
        return f"{bleu} BLEU"
    if paper := PAPER.get(f"{recipe}{added}"):
        return " / ".join(map(str, paper))
    tuned = PAPER.get(f"{recipe}{FINETUNED}{added}")
    return "" if tuned is None else f"{' / '.join(map(str, tuned))} ft"


def paper_gap(recipe: str | None, results: Sequence[Result]) -> str:
    if bleu := PAPER_BLEU.get(recipe or ""):
        ours = _mean(map(_tokenised_bleu, results))
        return "" if ours is None else numbers.change(ours - bleu)
    valid = _mean(each.valid_published for each in results)
    return less_paper(
        valid, _mean(each.test_published for each in results), PAPER.get(recipe or "")
    )


def less_paper(valid: float | None, test: float | None, paper: Perplexities | None) -> str:
    if paper is None:
        return ""
    pairs = zip((valid, test), paper, strict=True)
    return " / ".join(numbers.change(ours - theirs) for ours, theirs in pairs if ours is not None)


def paper_notes(table: Sequence[Sequence[str]], paper: int, gap_note: str = GAP_NOTE) -> list[str]:
    """What the columns ``paper`` and ``gap`` mean, if they are not empty."""
    gaps = [row[paper].endswith(" BLEU") for row in table if row[paper + 1]]
    notes = [gap_note] if not all(gaps) else []
    notes += [BLEU_NOTE] if any(gaps) else []
    return [*notes, TUNED_NOTE] if any(row[paper].endswith(" ft") for row in table) else notes


# -- curves ---------------------------------------------------------------------------------------


def epochs_table(runs: Sequence[RunSummary]) -> Table:
    """Validation perplexity of every run at a few epochs."""
    epochs = selected_epochs(sorted({point.epoch for run in runs for point in run.curve}))
    rows = []
    for run in runs:
        found = {point.epoch: point.valid for point in run.curve}
        rows.append([run.name, *(numbers.perplexity(found.get(epoch)) for epoch in epochs)])
    return Table.of(columns(["run", *map(str, epochs)]), rows)


def selected_epochs(epochs: Sequence[int]) -> list[int]:
    """All of a few; of many those at 1, 2, 3, 5 and their tens and hundreds, and the last."""
    if len(epochs) <= SHOWN_EPOCHS:
        return list(epochs)
    round_numbers = {digit * 10**power for power in range(7) for digit in (1, 2, 3, 5)}
    return [epoch for epoch in epochs if epoch in round_numbers or epoch == epochs[-1]]


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
    return Table.of(columns(["run", *(f"{wanted:,g}" for wanted in perplexities)]), rows)


def seconds_to(run: RunSummary, perplexity: float) -> float | None:
    """Seconds to the first validation at or below a perplexity; None if there is none."""
    for point in run.points:
        if point.valid is not None and point.valid <= perplexity and point.elapsed is not None:
            return point.elapsed
    return None


# -- cells ----------------------------------------------------------------------------------------

TEXTS = {"run", "recipe", "layer", "seeds", "device", "commit", "recorded", "note"}
TEXTS |= {"training count", "evaluation", "settings"}


def columns(names: Iterable[str]) -> list[Column]:
    return [Column(name, numeric=name not in TEXTS) for name in names]


def _figure(value: object) -> str:
    return numbers.perplexity(value) if isinstance(value, float) else str(value)


def _nested(value: object) -> bool:
    return isinstance(value, dict | list)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return mean(known) if known else None
