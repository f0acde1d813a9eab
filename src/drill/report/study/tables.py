"""Tables of a study: its status, and its results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean

from drill.language_modeling.evaluation.frequency_bands import Band
from drill.report.results.evaluations import DYNAMIC_AND_CACHE
from drill.report.results.ledger import Row
from drill.report.results.paper import FINETUNED
from drill.report.results.run_files import as_finite, known
from drill.report.study.plan import (
    ANALYSE,
    BLEU,
    FINETUNE,
    TRAIN,
    TRAINING,
    WORDS,
    Job,
    Plan,
    PlanRow,
)
from drill.report.study.states import AGAIN, DONE, FAILED, MISSING, States, stage_results
from drill.report.study.statistics import CONFIDENCE, paired_difference, standard_error
from drill.report.tables import number_format as numbers
from drill.report.tables import result_tables
from drill.report.tables.markup import Cell, Listing, Table
from drill.report.tables.result_tables import (
    BITS,
    DYNAMIC_AND_CACHE_NOTE,
    GAP_NOTE,
    RANK_NOTE,
)

BITS_PER_BYTE, BAND, MASS = "bits per byte", "band", "mass"
RANKS = {"rank": "rank_absolute", "rank, relative tolerance": "rank_relative"}
DECIMALS = {BITS_PER_BYTE: 4, BAND: 3, MASS: 4, **dict.fromkeys(RANKS, 1)}  # of other scores 2
BAND_NOTE = "Nats per token of the test text, by how often a token occurs in training."
TYPES_NOTE = f"{BAND_NOTE} The mean over types: every word weighs the same."
WORDS_NOTE = (
    "Of held-out words, where they occur: perplexity as labels (valid, test); on test by an equal "
    "share of <unk> (back-off), by a share of <unk> as the labels have it (mixed), among held-out "
    "words alone, mean rank as labels, and the probability of all labels together (mass)."
)
WORDS_KEYS = {
    "back-off": "backoff_perplexity",
    "mixed": "mixed_perplexity",
    "among": "among",
    "rank": "rank",
    MASS: "mass",
}
DASH = "-"  # unknown from one seed
STAGE_NOTES = {WORDS: [WORDS_NOTE], ANALYSE: [RANK_NOTE]}
MEAN_NOTE = "n: seeds; ± is the standard error of the mean."
DIFFERENCE_NOTE = (
    "Differences to the baseline are paired by seed, with a "
    f"{CONFIDENCE:.0%} confidence interval and the p-value of a two-sided paired t-test."
)

Metric = Callable[[Row], float | None]


# -- results -------------------------------------------------------------------------------------


def stage_table(states: States, stage: str, time_to: Sequence[float] = ()) -> Table:
    """One line per row of the plan: means over seeds and differences to the baseline."""
    baseline, results = states.plan.baseline, results_by_row(states, stage)
    every_result = [result for by_seed in results.values() for result in by_seed.values()]
    scores = stage_scores(stage, every_result)
    baseline_results = results.get(baseline or "", {})
    plan_rows = {row.name: row for row in states.plan.rows}
    rows = []
    for name, by_seed in results.items():
        group = list(by_seed.values())
        cells = [("row", name), ("n", str(len(group)))]
        cells += [
            (score, _mean_cell(map(metric, group), score)) for score, metric in scores.items()
        ]
        for score, metric in scores.items() if baseline_results else ():
            theirs = {} if name == baseline else baseline_results
            difference, p = difference_cells(by_seed, theirs, metric, score)
            cells += [(f"{score} - {baseline}", difference), ("p", p)]
        if stage == ANALYSE:
            bounds = known(stage_results(each, stage)[-1].get("rank_bound") for each in group)
            cells.append(("d + 2", f"{bounds[0]:,}" if bounds else ""))
        cells.append(("minutes", _minutes_cell(group, stage)))
        if stage in TRAINING:
            cells += [(f"minutes to {goal:g}", _time_cell(group, goal)) for goal in time_to]
        rows.append([*cells, *_paper_cells(plan_rows[name], group, stage)])
    notes = [MEAN_NOTE, *STAGE_NOTES.get(stage, [])]
    if any(dict(row).get("p") for row in rows):
        notes.append(DIFFERENCE_NOTE)
    notes += result_tables.paper_notes(
        rows, DYNAMIC_AND_CACHE_NOTE if stage in DYNAMIC_AND_CACHE else GAP_NOTE
    )
    for key in ("device", "commit"):
        values = dict.fromkeys(getattr(result, key) or "unknown" for result in every_result)
        notes += [f"{key.capitalize()}: {', '.join(values)}."] if values else []
    return Table.of(rows, notes, f"Results of {stage}")


def plan_settings(plan: Plan, stage: str) -> Listing:
    """What the plan sets for a training stage: for all rows, then for each.

    A result belongs to a row by its settings, so these are what it was trained with.
    """
    rows = [row for row in plan.rows if stage in TRAINING and stage in row.stages]
    changes = {row.name: row.set if stage == TRAIN else row.finetune_set for row in rows}
    first = next(iter(changes.values()), ())
    shared = [change for change in first if all(change in row_set for row_set in changes.values())]
    lines = {"all rows": shared}
    lines |= {
        name: [change for change in row_set if change not in shared]
        for name, row_set in changes.items()
    }
    items = [f"{name}: {'; '.join(row_set)}" for name, row_set in lines.items() if row_set]
    return Listing(items, "Settings of the plan")


def frequency_table(states: States, stage: str) -> Table:
    """Mean test loss of the labels of each band, and its difference to the baseline.

    Over tokens after training, over types by `drill analyse`. Without rows where the results have
    no bands.
    """
    baseline, results = states.plan.baseline or "", results_by_row(states, stage)
    every_result = [result for by_seed in results.values() for result in by_seed.values()]
    bands = _bands(every_result[0], stage) if every_result else {}
    rows = []
    for name, by_seed in results.items() if bands else ():
        if not by_seed:
            continue
        cells = [("row", name), ("n", str(len(by_seed)))]
        theirs = {} if name == baseline else results.get(baseline, {})
        for end, band in bands.items():

            def metric(row: Row, end: int | None = end) -> float | None:
                row_band = _bands(row, stage).get(end)
                if row_band is None:
                    return None
                return row_band.mean_by_types if stage == ANALYSE else row_band.mean_loss

            difference, _ = difference_cells(by_seed, theirs, metric, BAND)
            mean_loss = _mean_cell(map(metric, by_seed.values()), BAND)
            cells += [(band.label, mean_loss), (f"{band.label} - {baseline}", difference)]
        rows.append(cells)
    if stage == ANALYSE:
        return Table.of(rows, [TYPES_NOTE, MEAN_NOTE], "Loss by training count, over types")
    return Table.of(rows, [BAND_NOTE, MEAN_NOTE], "Loss by training count")


def _bands(row: Row, stage: str) -> dict[int | None, Band]:
    """Bands by their upper ends: the lowest band of an earlier row may begin at 1."""
    found = row.extra.get("test_bands", ()) if stage in TRAINING else ()
    if stage == ANALYSE:
        found = stage_results(row, stage)[-1]["bands"]
    return {band.high: band for band in (Band(**each) for each in found) if band.tokens}


def results_by_row(states: States, stage: str) -> dict[str, dict[int, Row]]:
    """Finished results by row of the plan, then by seed."""
    return {
        row.name: {
            seed: result
            for seed in row.seeds
            if (result := states.result(Job(row, seed, stage))) is not None
        }
        for row in states.plan.rows
        if stage in row.stages
    }


def stage_scores(stage: str, results: Sequence[Row]) -> dict[str, Metric]:
    """The columns of a stage: a heading, and the figure of a result."""
    if stage in TRAINING:
        test = "BLEU" if any("bleu" in result.extra for result in results) else "test"
        scores: dict[str, Metric] = {
            "valid": lambda row: row.valid,
            test: lambda row: as_finite(row.extra.get("bleu", row.test)),
        }
        if any(BITS in result.extra for result in results):
            scores[BITS_PER_BYTE] = lambda row: as_finite(row.extra.get(BITS))
        return scores

    def evaluation(n: int, key: str) -> Metric:
        return lambda row: as_finite(stage_results(row, stage)[n].get(key))

    if stage == ANALYSE:
        return {heading: evaluation(-1, key) for heading, key in RANKS.items()}
    if stage == BLEU:
        return {"valid BLEU": evaluation(0, "bleu"), "test BLEU": evaluation(1, "bleu")}
    scores = {"valid": evaluation(0, "perplexity"), "test": evaluation(1, "perplexity")}
    more = WORDS_KEYS if stage == WORDS else {}
    return scores | {heading: evaluation(1, key) for heading, key in more.items()}


def _mean_cell(values: Iterable[float | None], score: str) -> str:
    scores = known(values)
    if not scores:
        return DASH
    error, decimals = standard_error(scores), DECIMALS.get(score, 2)
    middle = (
        f"{mean(scores):.{decimals}f}" if score in DECIMALS else numbers.perplexity(mean(scores))
    )
    return middle if error is None else f"{middle} ± {error:.{decimals}f}"


def difference_cells(
    ours: Mapping[int, Row], theirs: Mapping[int, Row], metric: Metric, score: str
) -> tuple[str, str]:
    """The mean difference with its interval, and the p-value, over common seeds."""
    pairs = [
        (mine, other)
        for seed in ours.keys() & theirs.keys()
        if (mine := metric(ours[seed])) is not None and (other := metric(theirs[seed])) is not None
    ]
    if not pairs:
        return "", ""
    delta = paired_difference(*zip(*pairs, strict=True))
    decimals = DECIMALS.get(score, 2)
    middle = numbers.change(delta.mean, decimals)
    if delta.half is None or delta.p is None:
        return middle, DASH
    low, high = (numbers.change(delta.mean + side, decimals) for side in (-delta.half, delta.half))
    return f"{middle} ({low} to {high})", "< 0.001" if delta.p < 0.001 else f"{delta.p:.3f}"


def _minutes_cell(group: Sequence[Row], stage: str) -> str:
    if stage in TRAINING:
        seconds = known(row.seconds for row in group)
    else:
        seconds = [
            sum(one.get("seconds", 0.0) for one in stage_results(row, stage)) for row in group
        ]
    return f"{mean(seconds) / 60:.1f}" if seconds else ""


def _time_cell(group: Sequence[Row], goal: float) -> str:
    """Mean minutes of the runs that reached a perplexity, and how many those are."""
    reached = []
    for row in group:
        times = [v[3] for v in row.validations if v[3:] and v[1] is not None and v[1] <= goal]
        reached += known(times)[:1]
    of_all = "" if len(reached) == len(group) else f" ({len(reached)} of {len(group)})"
    return f"{mean(reached) / 60:.1f}{of_all}" if reached else DASH


def _paper_cells(row: PlanRow, group: Sequence[Row], stage: str) -> list[Cell]:
    if not group or stage in (BLEU, WORDS, ANALYSE):
        return [("paper", ""), ("gap", "")]
    recipe = row.paper or group[0].recipe
    if row.paper is not None and row.trained_by(stage) == FINETUNE:
        recipe = row.paper.removesuffix(FINETUNED) + FINETUNED
    if stage in TRAINING:
        return result_tables.paper_cells(recipe, group)
    return result_tables.dynamic_or_cache_cells(
        recipe, stage, [stage_results(result, stage) for result in group]
    )


def not_counted(states: States) -> Iterator[str]:
    """Sentences on jobs without a result, and on runs with several."""
    missing = 0
    for job in states.plan.jobs():
        state, failure, results = states.state(job), states.failure(job), states.results(job)
        finished = [row for row in results if row.test is not None]
        if state == DONE:
            if job.trains and len(finished) > 1:
                yield f"{job}: finished {len(finished)} times; the last result counts"
        elif state == FAILED and failure is not None:
            yield f"{job}: failed; {failure.message}"
        elif state == MISSING:
            missing += 1
        else:
            last = results[-1]
            valid = numbers.perplexity(last.valid)
            yield f"{job}: partial; epochs {last.epochs}, lowest valid {valid}"
    if missing:
        yield f"missing: {missing} of {len(states.plan.jobs())} jobs; --status lists them"


# -- status --------------------------------------------------------------------------------------


def status_table(states: States, parallel: int = 1) -> str:
    """A line per row and seed, a column per stage, the estimated minutes of what is left."""
    stages, left = states.plan.stages, states.to_run()
    lines = [["row", "seed", *stages, "minutes left"]]
    for row in states.plan.rows:
        for seed in row.seeds:
            jobs = {stage: Job(row, seed, stage) for stage in row.stages}
            row_jobs = [job for job in jobs.values() if job in left]
            shown = {stage: states.state(job) for stage, job in jobs.items()}
            shown |= {job.stage: AGAIN for job in row_jobs if shown[job.stage] == DONE}
            cells = [shown.get(stage, "") for stage in stages]
            lines.append([row.name, str(seed), *cells, states.minutes_left(row_jobs)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    rest = f"; {len(left)} to run, about {states.minutes_left(left)} min" if left else ""
    if left and parallel > 1:
        rest += f", {states.minutes_left(left, parallel)} with {parallel} at a time"
    return "\n".join([*table, f"{states.status_line(left)}{rest}"])
