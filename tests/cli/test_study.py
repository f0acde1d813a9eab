"""`drill study` with real, tiny runs."""

import json
from pathlib import Path

import pytest

STAGES = ("train", "cache", "analyse")
PLAN = """
name = "tiny"
stages = ["train", "cache", "analyse"]
set = ["training.epochs=1"]

[[row]]
name = "tied"
recipe = "tiny.toml"
set = ["layer.name=tied"]
"""


@pytest.fixture(scope="module")
def workspace(workspace):
    (workspace / "plan.toml").write_text(PLAN)
    return workspace


@pytest.mark.slow
def test_a_plan_becomes_a_table(run_cli):
    code, out, err = run_cli("study", "plan.toml", "--device", "cpu", "--minutes", "10")
    assert (code, out) == (0, "")
    jobs = [f"tied-seed-1 {stage}" for stage in STAGES for _ in "ab"]
    assert [line.partition(":")[0] for line in err.splitlines()] == [*jobs, "results/tiny.jsonl"]
    lines = Path("results/tiny.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["result", *["evaluation"] * 3]
    assert run_cli("study", "plan.toml", "--status")[1].splitlines()[1].split() == [
        "tied", "1", "done", "done", "done",
    ]  # fmt: skip
    assert run_cli("study", "plan.toml") == (0, "", "results/tiny.jsonl: 3 of 3 jobs done\n")
    report = run_cli("study", "plan.toml", "--report", "--time-to", "100")[1]
    assert all(f"### {stage}" in report for stage in STAGES)
    assert "| tied | 1 |" in report
    out = run_cli("study", "plan.toml", "--report", "--html", "study.html")[1]
    assert out == "wrote study.html\n"
    assert "Results of cache" in Path("study.html").read_text()


def test_a_study_that_its_budget_ended_says_so(run_cli, tmp_path):
    words = ("study", "plan.toml", "--minutes", "0", "--ledger", str(tmp_path / "none.jsonl"))
    code, _, err = run_cli(*words)
    assert (code, "--minutes 0" in err.splitlines()[-1]) == (0, True)


def test_the_ledger_next_to_the_folder_of_the_plan_is_found(run_cli, tmp_path):
    plan = tmp_path / "studies" / "plan.toml"
    plan.parent.mkdir()
    plan.write_text(
        PLAN.replace('name = "tiny"', 'ledger = "elsewhere"').replace("tiny.toml", "ptb-tied")
    )
    code, _, err = run_cli("study", str(plan), "--status")
    assert (code, err) == (0, "results/elsewhere.jsonl: no results yet\n")
    ledger = tmp_path / "results" / "elsewhere.jsonl"
    ledger.parent.mkdir()
    ledger.write_text("")
    assert run_cli("study", str(plan), "--status")[2] == ""


def test_options_of_reports_need_one(cli_error):
    for words in (("--time-to", "60"), ("--html", "study.html"), ("--report", "--status")):
        cli_error("study", "plan.toml", *words, key=f"drill: {words[0]}: ")
