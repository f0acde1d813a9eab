"""Tables of runs and of ledgers."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from drill.report.results.evaluations import DYNAMIC_AND_CACHE, Evaluation, last_pair
from drill.report.results.ledger import Row
from drill.report.results.paper import FINETUNED, PAPER, PAPER_BLEU, Perplexities
from drill.report.results.run_files import as_finite, known
from drill.report.results.runs import RunSummary
from drill.report.tables import number_format as numbers
from drill.report.tables.markup import Cell, Table

Result = RunSummary | Row

GAP_NOTE = (
    "Paper and gap are of validation / test; the gap is ours less the paper's, ours divided by all "
    "tokens as the paper's are."
)
DYNAMIC_AND_CACHE_NOTE = (
    "Paper and gap are of validation / test; the gap is ours less the paper's. Both are divided by "
    "all tokens with a cache, by those predicted in dynamic evaluation."
)
ADAPTED_NOTE = (
    "Dynamic evaluation updates the weights while it reads; the cache pointer mixes in recent "
    "words."
)
TUNED_NOTE = "ft: the paper has a finetuned model only."
BLEU_NOTE = (
    "Paper and gap of a translator are of BLEU over tokenised text, of the test; the gap is ours "
    "less the paper's."
)
RANK_NOTE = (
    "Rank of the log-probabilities of all tokens: singular values above 1.0, as in the released "
    "code, and above 1e-6 of the largest. One softmax cannot exceed d + 2."
)
BITS = "test_bits_per_byte"


# -- results --------------------------------------------------------------------------------------


def runs_table(results: Sequence[Result]) -> Table:
    """One row per run, with the paper's figures where it has the recipe.

    Rows of a ledger have their recipe, all further figures, commit, time and note too.
    """
    extra = dict.fromkeys(
        key
        for row in results
        if isinstance(row, Row)
        for key, value in row.extra.items()
        if not isinstance(value, dict | list) and key not in ("bleu", BITS)
    )
    rows = [
        [
            ("run", result.name),
            ("recipe", result.recipe or "" if isinstance(result, Row) else ""),
            ("layer", result.layer or ""),
            ("parameters", numbers.count(result.parameters)),
            ("seed", "" if result.seed is None else str(result.seed)),
            ("epochs", numbers.count(result.epochs)),
            ("valid", numbers.perplexity(result.valid)),
            ("test", numbers.perplexity(result.test)),
            ("BLEU", numbers.perplexity(_score(result, "bleu"))),
            ("bits per byte", numbers.fixed(_score(result, BITS), 4)),
            *paper_cells(result.recipe, [result]),
            *((key, _figure(key, result.extra.get(key, ""))) for key in extra),
            ("time", numbers.duration(result.seconds)),
            ("device", result.device or ""),
        ]
        for result in results
    ]
    for cells, result in zip(rows, results, strict=True):
        if isinstance(result, Row):
            time = result.recorded[:16].replace("T", " ")
            cells += [("commit", result.commit or ""), ("recorded", time), ("note", result.note)]
    return Table.of(rows, paper_notes(rows), "Every run")


def evaluations_table(results: Sequence[Result]) -> Table:
    """Perplexities of dynamic evaluation and of the cache.

    Both of a row have the same weights and settings; see ``last_pair``.
    """
    rows = []
    for result in results:
        for kind in DYNAMIC_AND_CACHE:
            if (pair := last_pair(result.evaluations, kind)) is None:
                continue
            valid, test = (as_finite((evaluation or {}).get("perplexity")) for evaluation in pair)
            rows.append(
                [
                    ("run", result.name),
                    ("layer", result.layer or ""),
                    ("evaluation", kind),
                    ("settings", pair.settings),
                    ("valid", numbers.perplexity(valid)),
                    ("test", numbers.perplexity(test)),
                    *dynamic_or_cache_cells(result.recipe, kind, [pair]),
                ]
            )
    notes = [ADAPTED_NOTE, *paper_notes(rows, DYNAMIC_AND_CACHE_NOTE)]
    return Table.of(rows, notes, "Perplexity of dynamic evaluation and the cache")


def ranks_table(rows: Mapping[str, Evaluation]) -> Table:
    """The ranks that `drill analyse` has saved, by the names of the runs."""
    cells = [
        [
            ("run", name),
            ("tokens", numbers.count(row.get("rank_tokens"))),
            ("rank", numbers.count(row["rank_absolute"])),
            ("rank, relative tolerance", numbers.count(row["rank_relative"])),
            ("d + 2", numbers.count(row.get("rank_bound"))),
        ]
        for name, row in rows.items()
    ]
    return Table.of(cells, [RANK_NOTE])


def _score(result: Result, key: str) -> float | None:
    return as_finite(result.extra.get(key))


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


def paper_cells(recipe: str | None, results: Sequence[Result]) -> list[Cell]:
    """The paper's figures, and by how much the mean of ours is higher."""
    if bleu := PAPER_BLEU.get(recipe or ""):
        ours = _mean(_score(result, "tokenised_bleu") for result in results)
        gap = "" if ours is None else numbers.change(ours - bleu)
    else:
        valid = _mean(result.valid_all_tokens for result in results)
        test = _mean(result.test_all_tokens for result in results)
        gap = gap_to_paper(valid, test, PAPER.get(recipe or ""))
    return [("paper", paper_figures(recipe)), ("gap", gap)]


def dynamic_or_cache_cells(
    recipe: str | None, kind: str, pairs: Iterable[Sequence[Evaluation | None]]
) -> list[Cell]:
    """As ``paper_cells``, of (valid, test) by dynamic evaluation or with a cache."""
    # see DYNAMIC_AND_CACHE_NOTE
    key = "perplexity" if kind == "dynamic" else "perplexity_all_tokens"
    sides = zip(*pairs, strict=True)
    valid, test = (_mean(as_finite((row or {}).get(key)) for row in side) for side in sides)
    gap = gap_to_paper(valid, test, PAPER.get(f"{recipe}+{kind}"))
    return [("paper", paper_figures(recipe, f"+{kind}")), ("gap", gap)]


def gap_to_paper(valid: float | None, test: float | None, paper: Perplexities | None) -> str:
    if paper is None:
        return ""
    pairs = zip((valid, test), paper, strict=True)
    return " / ".join(numbers.change(ours - theirs) for ours, theirs in pairs if ours is not None)


def paper_notes(rows: Sequence[Sequence[Cell]], gap_note: str = GAP_NOTE) -> list[str]:
    """What the columns ``paper`` and ``gap`` mean, if they are not empty."""
    cells = [dict(row) for row in rows]
    gaps = [row["paper"].endswith(" BLEU") for row in cells if row["gap"]]
    notes = [gap_note] if not all(gaps) else []
    notes += [BLEU_NOTE] if any(gaps) else []
    return [*notes, TUNED_NOTE] if any(row["paper"].endswith(" ft") for row in cells) else notes


# -- cells ----------------------------------------------------------------------------------------


def _figure(key: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return numbers.fixed(value, 4) if key.endswith("bits_per_byte") else numbers.perplexity(value)


def _mean(values: Iterable[float | None]) -> float | None:
    known_values = known(values)
    return mean(known_values) if known_values else None
