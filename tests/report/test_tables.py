"""Tables of synthetic runs with known figures."""

import json
import math

import pytest

from drill.recipes.reader import recipe_names
from drill.report.results import ledger
from drill.report.results.paper import FINETUNED, PAPER, PAPER_BLEU
from drill.report.results.runs import read_run, read_runs
from drill.report.tables import number_format
from drill.report.tables.markup import Table, markdown_text
from drill.report.tables.result_tables import (
    evaluations_table,
    runs_table,
)
from tests.report.folders import of_weights, write_evaluations, write_run

ADAPTED_PAPER = ("51.6 / 51.1", "+0.4 / +0.4")


def cells(table, row=0):
    return dict(zip(table.headings, table.rows[row], strict=True))


def test_every_row_of_the_paper_is_a_recipe():
    assert {name.partition("+")[0].removesuffix(FINETUNED) for name in PAPER} <= set(recipe_names())
    assert set(PAPER_BLEU) <= set(recipe_names())


def test_runs_table_has_the_papers_figures(tmp_path):
    run = read_run(write_run(tmp_path / "tied", valid=[300.0, 61.53], test=58.901))
    table = runs_table([run])
    assert cells(table) == {
        "run": "tied", "layer": "tied", "parameters": "24,221,600", "seed": "28", "epochs": "2",
        "valid": "61.53", "test": "58.90", "paper": "60.7 / 58.8",
        "gap": "+0.8 / +0.1",  # of 61.50 and 58.90, which divide by all tokens as the paper does
        "time": "0:27",
        "device": "NVIDIA H200",
    }  # fmt: skip
    assert any("gap" in note for note in table.notes)


def test_the_papers_figures_are_of_the_same_model(tmp_path):
    def row(recipe, **options):
        table = runs_table([read_run(write_run(tmp_path / recipe, recipe=recipe, **options))])
        shown = cells(table)
        return shown.get("test"), shown.get("paper"), shown.get("gap"), table.notes

    test, paper, gap, notes = row("ptb-dual")  # the paper has it finetuned only
    assert (paper, gap) == ("58.8 / 56.4 ft", None)
    assert any(note.startswith("ft: ") for note in notes)
    test, paper, gap, _ = row("ptb-dual-finetune", valid=[59.33], test=56.901)
    assert (paper, gap) == ("58.8 / 56.4", "+0.5 / +0.5")
    assert row("ptb-mos-finetune")[1] == "56.54 / 54.44"  # with all decimals
    test, _, gap, _ = row("ptb-tied", valid=[61.53], test=None)
    assert (test, gap) == (None, "+0.8")  # validation alone
    assert row("my-own")[1:] == (None, None, [])


def test_evaluations_table_has_the_papers_figures(tmp_path):
    tuned = write_run(tmp_path / "tuned", recipe="ptb-tied-finetune")
    own = {**of_weights(tuned), "precision": "tf32", "batch_size": 1}
    step, cache = {"kind": "dynamic", "lr": 5e-5, **own}, {"kind": "cache", "theta": 1.0, **own}
    write_evaluations(
        tuned,
        [
            {**cache, "split": "test", "perplexity": 53.1, "perplexity_all_tokens": 53.0},
            {**step, "split": "valid", "perplexity": 52.0, "perplexity_all_tokens": 51.9},
            {**step, "split": "test", "perplexity": 51.5, "seconds": 2.0},
            {**step, "split": "train", "perplexity": 9.0, "perplexity_all_tokens": 9.0},
        ],
    )
    plain = write_run(tmp_path / "plain")
    own = {**of_weights(plain), "as_published": True}
    write_evaluations(plain, [{"kind": "cache", "split": "test", "perplexity": 54.0, **own}])
    table = evaluations_table(read_runs([tuned, plain, write_run(tmp_path / "none")]))
    assert [list(row) for row in table.rows] == [
        ["tuned", "tied", "dynamic", "lr 5e-05, tf32", "52.00", "51.50", *ADAPTED_PAPER],
        ["tuned", "tied", "cache", "theta 1, tf32", "", "53.10", "53.9 / 52.8", "+0.2"],
        ["plain", "tied", "cache", "as published", "", "54.00", "53.9 / 52.8 ft", ""],
    ]


def test_both_figures_of_an_evaluation_are_by_the_same_settings(tmp_path):
    run = write_run(tmp_path / "run", recipe="ptb-tied-finetune")
    row = {"kind": "cache", "perplexity_all_tokens": 54.0, **of_weights(run)}

    def found(*said: tuple[str, float, float]) -> tuple[str | None, ...]:
        keys = ("split", "theta", "perplexity")
        write_evaluations(run, [{**row, **dict(zip(keys, each, strict=True))} for each in said])
        shown = cells(evaluations_table([read_run(run)]))
        return tuple(shown.get(name) for name in ("settings", "valid", "test"))

    valid, test = ("valid", 1.0, 60.0), ("test", 1.0, 58.0)
    other_valid, other_test = ("valid", 0.5, 59.0), ("test", 0.5, 57.0)
    assert found(valid, other_test) == ("theta 0.5", None, "57.00")
    assert found(valid, test, other_test) == ("theta 1", "60.00", "58.00")
    assert found(other_valid, other_test, valid, test) == ("theta 1", "60.00", "58.00")
    assert found(valid, other_valid, test, other_test) == ("theta 0.5", "59.00", "57.00")


def test_runs_table_has_the_papers_bleu(tmp_path):
    """Over tokenised text, as the paper's is; the other BLEU has its own column."""
    run = write_run(tmp_path / "a", recipe="wmt14-drill")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    test = {**json.loads(lines[-1]), "test_bleu": 27.0, "test_tokenised_bleu": 27.6}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(test)]) + "\n")
    ledger.record_run(run, tmp_path / "runs.jsonl")
    rows = ledger.read_ledger(tmp_path / "runs.jsonl")
    for table in (runs_table([read_run(run)]), runs_table(rows)):
        assert cells(table)["paper"] == "28.1 BLEU"
        assert cells(table)["gap"] == "-0.5"
        assert [note for note in table.notes if "tokenised" in note]
        assert not [note for note in table.notes if "divided by all" in note]
    assert rows[0].extra["tokenised_bleu"] == 27.6


def test_a_ledger_as_a_table(tmp_path):
    path = tmp_path / "runs.jsonl"
    extra = {"list": [1, 2], "table": {}, "bleu": 27.3}
    ledger.record_run(write_run(tmp_path / "a", test=58.0), path, "a | note", extra)
    row = cells(runs_table(ledger.read_ledger(path)))
    wanted = {"recipe": "ptb-tied", "test": "58.00", "commit": "abc1234", "note": "a | note"}
    wanted |= {"BLEU": "27.30"}
    assert wanted == {key: row[key] for key in wanted}
    assert not {"list", "table"} & row.keys()
    assert row["recorded"].startswith("20")


# -- numbers and text ----------------------------------------------------------------------------


FORMATS = {
    number_format.perplexity: [
        (57.049, "57.05"), (999.99, "999.99"), (2977.09, "2,977"), (1.25e6, "1.2e+06"),
        (math.inf, "inf"), (math.nan, "nan"), (None, ""),
    ],
    number_format.change: [
        (0.31, "+0.3"), (-1.24, "-1.2"), (0.04, "0.0"), (-0.04, "0.0"), (math.inf, "+inf"),
        (None, ""), (math.nan, ""),
    ],
    markdown_text: [
        ("ptb_tied-seed_28", "ptb_tied-seed_28"), ("_x_ *y* `z`", r"\_x\_ \*y\* \`z\`"),
        ("a|b\nc", r"a\|b c"), ("[x](javascript:y)", r"\[x\](javascript:y)"),
        ("<b> &amp; \\", r"\<b> \&amp; \\"), ("60.1 ± 0.2", "60.1 ± 0.2"),
        ("< 0.1 -> 0.2", "< 0.1 -> 0.2"), ("> x", r"\> x"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_numbers_and_text_are_written_as_people_read_them(write):
    assert [write(value) for value, _ in FORMATS[write]] == [text for _, text in FORMATS[write]]


def test_a_table_in_markdown_has_no_empty_columns():
    rows = [
        [("run", run), ("test", test), ("never", "")]
        for run, test in (("tied", "58.00"), ("a|b", "57.10"))
    ]
    assert Table.of(rows, ["A note."]).markdown() == (
        "| run | test |\n|---|---:|\n| tied | 58.00 |\n| a\\|b | 57.10 |\n\nA note.\n"
    )
