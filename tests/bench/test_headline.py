"""The README's figures are of runs that may be compared, or a sentence says what is lacking."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from drill.report import Row, read

ROOT = Path(__file__).parents[2]
RUNS = read(ROOT / "results/runs.jsonl")
BENCHMARKS = [json.loads(line) for line in (ROOT / "results/h200.jsonl").read_text().splitlines()]


@pytest.fixture
def headline(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import headline

    return headline


def latest(recipe: str) -> Row:
    return [row for row in RUNS if row.recipe == recipe][-1]


def changed(row: Row, key: str, value: object, **more: object) -> Row:
    """The run with another setting of its training, after all others."""
    training = {**row.settings["training"], key: value}
    told = [*(row.changes or ()), f"training.{key}: other -> {value}"]
    settings = {**row.settings, "training": training}
    later = {"recorded": "2027-01-01T00:00:00+00:00", "settings_digest": f"{key} {value}", **more}
    return replace(row, settings=settings, changes=told, **later)


def test_a_try_of_one_seed_replaces_no_comparison(headline):
    tried = [
        changed(latest(f"europarl-{name}"), "beam", 3, extra={"bleu": 1.0})
        for name in ("tied", "drill", "dual")
    ]
    for more in (tried[:1], tried):
        assert list(headline.translations([*RUNS, *more])) == list(headline.translations(RUNS))


def test_settings_of_as_many_seeds_do_if_they_are_later(headline):
    again = [
        changed(row, "beam", 3, extra={**row.extra, "bleu": row.extra["bleu"] + 10})
        for row in RUNS
        if row.recipe in ("europarl-tied", "europarl-drill") and row.settings
    ]
    (*_, before), (*_, after) = (headline.translations([*RUNS, *more]) for more in ([], again))
    assert float(after[1]) == pytest.approx(float(before[1]) + 10)


def test_perplexities_are_of_the_recipe_and_of_all_its_epochs(headline):
    import curves

    row = latest("ptb-drill-4")
    other = changed(row, "bptt", 35, curve=[[epoch, 1.0, 1.0] for epoch, _, _ in row.curve])
    short = replace(row, curve=row.curve[:19])
    longer = changed(row, "epochs", 50, curve=[*row.curve, [21, 70.0, 70.0]])
    before = headline.perplexity(RUNS)
    assert headline.perplexity([*RUNS, other, short]) == before
    assert list(curves.table([*RUNS, other, short])) == list(curves.table(RUNS))
    runs = len([row for row in curves.comparable(RUNS, row.recipe) if row.precision == "bfloat16"])
    assert f"{runs} runs" in before[0]
    more = before[0].replace(f"{runs} runs", f"{runs + 1} runs")
    assert headline.perplexity([*RUNS, longer])[0] == more


def test_what_a_run_at_length_ends_with_is_of_one_run_and_its_finetuning(headline):
    tuned = latest("ptb-drill-4-finetune")
    (run,) = (row for row in RUNS if row.name == tuned.settings["start"])
    settings = {**tuned.settings, "start": "another"}
    stranger = replace(tuned, name="another-finetune", settings=settings, test_published=1.0)
    other = changed(run, "bptt", 35, test_published=2.0)
    before = headline.at_the_end(RUNS)
    assert before[1] == "57.8; 56.9; 49.4"
    shorter = changed(run, "epochs", 599, epochs=599, test_published=3.0)
    assert headline.at_the_end([*RUNS, stranger, other, shorter]) == before
    again = replace(run, test_published=57.0)
    assert headline.at_the_end([*RUNS, again])[1] == "57.0; 56.9; 49.4"


@pytest.mark.parametrize(
    ("kept", "lacking"),
    [
        (lambda row: row.recipe != "ptb-drill-4", "20 epochs of ptb-drill-4 in bfloat16"),
        (lambda row: row.recipe != "ptb-drill-4-finetune", "ptb-drill-4 at length, finetuned"),
        (lambda row: row.recipe != "europarl-tied", "translators of europarl with deep-residual 2"),
    ],
)
def test_a_ledger_that_lacks_runs_is_told_which(headline, kept, lacking):
    with pytest.raises(SystemExit, match=f"is about {lacking}.*drill record RUN"):
        list(headline.table(BENCHMARKS, [row for row in RUNS if kept(row)]))


@pytest.mark.parametrize(
    ("benchmark", "mend"), [(name, f"{name}.py") for name in ("loss", "lstm", "step", "epoch")]
)
def test_rows_that_lack_a_benchmark_are_told_which(headline, benchmark, mend):
    rows = [row for row in BENCHMARKS if row["benchmark"] != benchmark]
    with pytest.raises(SystemExit, match=f"no row; add by `python bench/{mend}.*--json ROWS`"):
        list(headline.table(rows, RUNS))
