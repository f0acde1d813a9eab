"""Measured tables are made from what the benchmarks wrote, never by hand."""

import json
from pathlib import Path

import pytest

from tests.bench.scripts import ROOT, script


def summary(*arguments: str) -> str:
    """What the command prints."""
    done = script("summary", *arguments)
    done.check_returncode()
    return done.stdout


@pytest.mark.parametrize(
    ("page", "files"),
    [
        ("results", ["results/h200.jsonl", "results/runs.jsonl"]),
        ("results-cpu", ["results/cpu.jsonl"]),
    ],
)
def test_the_results_page_is_what_the_rows_say(page, files):
    assert summary(*files) == (ROOT / "docs" / f"{page}.md").read_text()


def test_the_results_page_has_the_translators_of_the_ledger():
    found = summary("results/h200.jsonl", "results/runs.jsonl")
    for layer in ("tied", "dual", "deep-residual 2"):
        assert f"| multi30k | {layer} |" in found
    assert "| BLEU of each seed | mean | over tied | tokenised BLEU | chrF |" in found


def test_the_tables_of_the_figures_are_what_the_rows_say(tmp_path):
    copy, page = tmp_path / "figures.md", (ROOT / "docs/figures.md").read_text()
    copy.write_text(page.replace("| bilinear | ", "| bilinear | 9"))
    assert copy.read_text() != page
    summary("results/h200.jsonl", "--into", str(copy))
    assert copy.read_text() == page


ROW = {
    "benchmark": "loss",
    "size": "ptb",
    "tokens": 1400,
    "labels": 10_000,
    "width": 400,
    "dtype": "float32",
    "device": "a machine",
    "torch": "2",
    "ms_median": 1.0,
}


def page_of(tmp_path: Path, *rows: dict[str, object]) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(ROW | row) + "\n" for row in rows))
    return summary(str(file))


def test_the_page_says_how_its_rows_were_made(tmp_path):
    options = "--size llm --no-bias"
    floor = {"name": "GEMM floor", "commit": "abc", "arguments": options}
    ours = {"name": "drill auto", "commit": "abc", "arguments": options, "bias": False}
    found = page_of(tmp_path, floor, ours)
    assert "`python bench/loss.py --size llm --no-bias`" in found
    assert "float32, without a bias" in found
    assert "nobody knows" not in found
    mixed = page_of(tmp_path, ours | {"bias": True}, ours | {"name": "another"})
    assert "with a bias except another" in mixed


def test_rows_without_a_commit_are_marked_and_those_without_options_still_shown(tmp_path):
    found = page_of(tmp_path, {"name": "old"}, {"name": "new", "commit": "abc"})
    assert "1 of the 2 rows nobody knows which commit" in found
    assert "`python bench/loss.py`" in found
    assert "| old | 1.000 |" in found


def test_epochs_have_a_table_of_their_own(tmp_path):
    row = {
        **{"benchmark": "epoch", "name": "ptb-tied", "precision": "bfloat16"},
        **{"seconds_median": 1.7, "first_seconds": 7.5},
        **{"dynamic_seconds": 37.04, "statistics_seconds": 12.5},
        **{"device": "GPU", "torch": "2.11", "commit": "abc", "arguments": "--dynamic"},
    }
    dynamic_alone = {key: value for key, value in row.items() if key != "seconds_median"}
    dynamic_alone |= {"name": "ptb-drill-4", "commit": None}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(dynamic_alone)}\n")
    lines = summary(str(tmp_path / "rows.jsonl")).splitlines()
    assert "`python bench/epoch.py --dynamic`" in lines
    assert "| ptb-tied | bfloat16 | 1.70 | 7.50 | 12.5 | 37.0 | commit abc |" in lines
    alone = "| ptb-drill-4 | bfloat16 |  | 7.50 | 12.5 | 37.0 | at an unknown commit |"
    assert alone in lines


def test_every_table_names_its_commit(tmp_path):
    lstm = {"benchmark": "lstm", "name": "cudnn", "output_error": 3.4e-3, "gradient_error": 4.7e-3}
    found = page_of(
        tmp_path,
        {"name": "drill auto", "commit": "abc"},
        {"name": "drill auto", "commit": "def", "ms_median": 2.0},
        lstm | {"commit": "abc"},
    )
    heading = "**ptb**, N=1,400 V=10,000 d=400, float32, commit"
    assert found.count(f"{heading} abc\n") == 2
    assert found.count(f"{heading} def\n") == 1
    assert "| drill auto | 1.000 |" in found
    assert "| drill auto | 2.000 |" in found
    assert "| | ms | x cudnn | output error | gradient error |" in found
    assert "| cudnn | 1.000 | 1.00 | 3.4e-03 | 4.7e-03 |" in found


def test_a_step_is_compared_with_the_tied_and_with_its_own_plain_model(tmp_path):
    plain = "plain nn.LSTM + F.cross_entropy"
    step = {"benchmark": "step", "commit": "abc", "ms_median": 100.0}
    found = page_of(
        tmp_path,
        step | {"name": plain},
        step | {"name": f"{plain}, deep-residual 2", "ms_median": 120.0},
        step
        | {
            "name": "drill deep-residual 2",
            "ms_median": 90.0,
            "own_plain": f"{plain}, deep-residual 2",
        },
    )
    assert "| | ms | x plain tied | x its own plain |" in found
    assert "| drill deep-residual 2 | 90.000 | 0.90 | 0.75 |" in found
    assert f"| {plain}, deep-residual 2 | 120.000 | 1.20 |  |" in found
