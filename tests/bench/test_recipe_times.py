"""The times that `drill recipes` tells are those of the results, and of the recipes themselves."""

import json
from dataclasses import asdict

import pytest

from drill import report
from drill.recipes.reader import measured
from tests.bench.scripts import ROOT, script

FILES = [ROOT / "results/runs.jsonl", ROOT / "results/h200.jsonl"]


@pytest.fixture
def times(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from recipe_times import times

    return times


def test_the_times_are_those_of_the_results():
    assert len(measured()) >= 7
    done = script("recipe_times", *FILES)
    done.check_returncode()
    told = {name: asdict(time) for name, time in measured().items()}
    assert json.loads(done.stdout) == told


def test_a_whole_run_goes_before_an_epoch_and_that_before_a_part(tmp_path, times):
    ledger = tmp_path / "runs.jsonl"
    lines = [json.loads(line) for line in FILES[0].read_text().splitlines()]
    (whole,) = [{**row, "note": ""} for row in lines if row.get("name") == "mt-demo"]
    part = {**whole, "changes": ["training.epochs: 12 -> 3"], "epochs": 3, "seconds": 60.04}
    other = {**whole, "changes": ["layer.depth: 2 -> 3"], "seconds": 1.0}
    unknown = {**whole, "recipe": "mine", "seconds": 2.0}
    old = {**whole, "changes": None, "seconds": 3.0}
    epoch = {"benchmark": "epoch", "name": "mt-demo", "seconds": [9.0, 20.0, 21.0]}
    epoch |= {"device": "a box", "commit": "abc1234"}

    def of(*held: dict, timed: bool = False) -> dict:
        ledger.write_text("".join(json.dumps(row) + "\n" for row in held))
        return times(report.read(ledger), [epoch] if timed else [])

    assert of(other, unknown, old) == {}
    assert of(part)["mt-demo"]["seconds"] == 60.0
    box = {"seconds": 20.0, "epochs": 1, "device": "a box", "commit": "abc1234", "note": ""}
    assert of(part, timed=True) == {"mt-demo": box}
    assert of(whole, part, timed=True)["mt-demo"]["epochs"] == 12
    shared = {**whole, "note": "tests beside it", "recorded": "2027-01-01T00:00:00+00:00"}
    for alone in (whole, part):
        assert of(alone, shared)["mt-demo"]["note"] == ""
    assert of(shared, timed=True) == {"mt-demo": box}
    assert of(shared)["mt-demo"]["note"] == "shared: tests beside it"


def test_a_time_with_company_is_not_held_against_one_without(tmp_path, times):
    """The layer that ran beside tests would look slow."""
    lines = [json.loads(line) for line in FILES[0].read_text().splitlines()]
    tied, deep = (
        {**[row for row in lines if row.get("recipe") == recipe][-1], "changes": [], "seconds": 9.0}
        for recipe in ("demo-tied", "demo-drill")
    )
    (other,) = [row for row in lines if row.get("name") == "mt-demo"]

    def of(*held: dict) -> list[str]:
        ledger = tmp_path / "runs.jsonl"
        ledger.write_text("".join(json.dumps(row) + "\n" for row in held))
        return [*times(report.read(ledger), [])]

    quiet, busy = {"note": "two cores"}, {"note": "two cores, tests beside it"}
    assert of(tied | quiet, deep | busy, other | busy) == ["demo-tied", "mt-demo"]
    assert of(tied | busy, deep | busy) == of(tied | quiet, deep | quiet)
