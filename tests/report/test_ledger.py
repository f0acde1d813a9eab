"""The ledger: rows are added whole, never twice, never changed."""

import dataclasses
import json
import math
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from drill.report import read_run
from drill.report.results.ledger import AlreadyRecorded, LedgerError, read_ledger, record_run
from drill.training.settings import recipe
from tests.report.folders import of_weights, write_evaluations, write_run

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.jsonl"


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_a_row_says_what_was_measured_and_where(tmp_path):
    run = write_run(tmp_path / "runs" / "tied", valid=[90.0, 60.5, 61.0], test=58.0)
    path = tmp_path / "results" / "runs.jsonl"
    row = record_run(run, path, "first try", {"dynamic_test": 51.2}, now=NOW)
    assert json.loads(path.read_text()) == {
        "kind": "result", "name": "tied", "recipe": "ptb-tied", "layer": "tied",
        "parameters": 24_221_600, "seed": 28, "epochs": 3, "best_epoch": 2, "valid": 60.5,
        "test": 58.0, "valid_all_tokens": 60.47, "test_all_tokens": 57.999, "seconds": 39.5,
        "tokens_per_second": 74_002.0, "device": "NVIDIA H200", "commit": "abc1234",
        "torch": "2.11.0", "precision": "tf32", "recorded": "2026-11-15T09:30:00+00:00",
        "note": "first try", "evaluations": [], "extra": {"dynamic_test": 51.2},
        "fingerprint": row.fingerprint,
        "curve": [[1, 90.0, 89.97], [2, 60.5, 60.47], [3, 61.0, 60.97]],
        "validations": [[687, 90.0, 90.0, 12.5], [1374, 60.5, 90.0, 25.0],
                        [2061, 61.0, 90.0, 37.5]],
        "settings": {
            "recipe": "ptb-tied", "data": {"corpus": "ptb"},
            "encoder": {"widths": [400, 1150, 1150, 400]}, "layer": {"name": "tied"},
            "optimizer": {"lr": 30.0}, "training": {"epochs": 3, "seed": 28},
        },
        "changes": ["encoder.widths: none -> [400, 1150, 1150, 400]", "training.epochs: 500 -> 3"],
    }  # fmt: skip
    assert read_ledger(path) == [row]


def test_a_result_is_recorded_once_unless_forced(tmp_path, path):
    run = write_run(tmp_path / "a")
    record_run(run, path)
    copy = write_run(tmp_path / "copy")
    with pytest.raises(AlreadyRecorded, match=str(path)):
        record_run(copy, path)
    assert len(lines(path)) == 1
    record_run(copy, path, "again", force=True)
    assert [row.note for row in read_ledger(path)] == ["", "again"]


def test_an_evaluation_is_a_row_of_its_own_that_names_the_result(tmp_path, path):
    run = write_run(tmp_path / "a")
    first = record_run(run, path)
    before = path.read_bytes()
    dynamic = {"kind": "dynamic", "split": "test", "perplexity": 51.0, "lr": 5e-5}
    dynamic |= of_weights(run)
    write_evaluations(run, [dynamic])
    row = record_run(run, path, "later", now=NOW)
    assert path.read_bytes().startswith(before)
    assert json.loads(lines(path)[1]) == {
        "kind": "evaluation", "fingerprint": first.fingerprint, "evaluation": dynamic,
        "recorded": "2026-11-15T09:30:00+00:00", "note": "later",
    }  # fmt: skip
    assert read_ledger(path) == [row]  # one result, however often it is evaluated
    assert row == dataclasses.replace(first, evaluations=[dynamic])
    with pytest.raises(AlreadyRecorded):
        record_run(run, path)
    better, cache = {**dynamic, "perplexity": 50.0}, {**dynamic, "kind": "cache"}
    write_evaluations(run, [dynamic, better, cache])
    assert record_run(run, path).evaluations == [better, cache]
    assert [json.loads(line)["kind"] for line in lines(path)] == ["result", *["evaluation"] * 3]


def test_a_run_that_was_trained_further_is_another_result(tmp_path, path):
    run = write_run(tmp_path / "a", valid=[90.0, 80.0], test=None)
    recipe_file = run / "recipe.toml"
    recipe_file.write_text(f'init_from = "{tmp_path / "first"}"\n{recipe_file.read_text()}')
    row = {"kind": "cache", "split": "test", "perplexity": 70.0, "theta": 1.0, **of_weights(run)}
    write_evaluations(run, [row, other := {**row, "theta": 0.5}, again := {**row, "loss": 1.0}])
    first = record_run(run, path)
    assert first.evaluations == [other, again]  # the last one of every setting
    assert first.settings["init_from"] == "first"  # a name, not a path
    with pytest.raises(AlreadyRecorded):
        record_run(run, path)
    second = record_run(write_run(run, valid=[90.0, 80.0, 70.0, 60.0]), path)
    assert (second.epochs, second.test, second.evaluations) == (4, 58.0, [])  # of other weights
    assert read_ledger(path) == [first, second]


def test_the_fingerprint_of_a_recorded_run_stays(tmp_path):
    """Older rows have it: another way to compute it would let every run in twice."""
    run = write_run(tmp_path / "a", valid=[90.0, 60.5], test=58.0)
    assert read_run(run).fingerprint == "d86de1ea98681b12"


def test_a_run_that_diverged_is_a_result_too(tmp_path, path):
    row = record_run(write_run(tmp_path / "a", valid=["nan", "inf"], test=None), path, "lr 60")
    assert (row.valid, row.test, row.epochs) == (None, None, 2)
    assert row.curve == [[1, None, None], [2, None, None]]
    assert "NaN" not in path.read_text()


def test_changes_to_the_recipe_are_recorded(tmp_path, path):
    run = write_run(tmp_path / "a")
    changes = ["optimizer.lr=5e-4", "training.max_minutes=8.7", "training.seed=7"]
    settings = recipe("europarl-tied", changes).to_toml()
    (run / "recipe.toml").write_text(settings)
    row = record_run(run, path)
    wanted = ["optimizer.lr: 0.0007 -> 0.0005", "training.max_minutes: none -> 8.7"]
    assert row.changes == wanted
    assert row.settings == tomllib.loads(settings)
    own = write_run(tmp_path / "b", recipe="mine")  # drill has no such recipe
    with (own / "recipe.toml").open("a") as stream:
        stream.write("checkpoint_seconds = inf\nday = 2026-01-01\n")
    other = record_run(own, path)
    assert other.changes is None
    assert other.settings["training"]["checkpoint_seconds"] == "Infinity"
    assert other.settings["training"]["day"] == "2026-01-01"
    assert read_ledger(path) == [row, other]


def test_unusable_arguments(tmp_path, path):
    run = write_run(tmp_path / "a")
    with pytest.raises(LedgerError, match="no epoch"):
        record_run(write_run(tmp_path / "b", valid=[]), path)
    write_run(tmp_path / "c").joinpath("environment.json").unlink()
    with pytest.raises(LedgerError, match=r"environment.json"):
        record_run(tmp_path / "c", path)
    with pytest.raises(ValueError, match="JSON"):
        record_run(run, path, extra={"x": math.nan})
    with pytest.raises(LedgerError, match=r"a/environment.json/runs.jsonl"):
        record_run(run, run / "environment.json" / "runs.jsonl")
    with pytest.raises(LedgerError, match=r"none.jsonl"):
        read_ledger(tmp_path / "none.jsonl")
    assert not path.exists()


def test_rows_of_other_versions_are_read(tmp_path, path):
    row = record_run(write_run(tmp_path / "a"), path)
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "colour": "blue"}) + "\n")
    assert read_ledger(path) == [row]
    later = {"curve": [], "validations": [], "settings": {}, "changes": None}
    older = {key: written[key] for key in written if key not in later}
    path.write_text(json.dumps(older) + "\n")
    assert read_ledger(path) == [dataclasses.replace(row, **later)]
    first = read_ledger(ROOT / "results/runs.jsonl")[0]
    assert (first.changes, first.settings) == (None, {})


@pytest.mark.parametrize(
    "line", [b'{"kind": "result"', b"[]", b"\xff\xfe", b'{"kind": "result"}', b'{"some": "thing"}']
)
def test_a_damaged_line_is_named_and_nothing_is_appended(tmp_path, path, line):
    record_run(write_run(tmp_path / "a", seed=1), path)
    path.write_bytes(b"\n" + path.read_bytes() + line + b"\n")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=f"{path}: line 3"):
        read_ledger(path)
    with pytest.raises(LedgerError, match=f"{path}: line 3"):
        record_run(write_run(tmp_path / "b", seed=2), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"kind": "resu'])
def test_a_last_line_without_its_end(tmp_path, path, end):
    """An editor may remove the line end; a killed writer leaves a part of a line."""
    record_run(write_run(tmp_path / "a", seed=1), path)
    path.write_bytes(path.read_bytes().rstrip(b"\n") + end)
    assert [row.seed for row in read_ledger(path)] == [1]
    record_run(write_run(tmp_path / "b", seed=2), path)
    assert [row.seed for row in read_ledger(path)] == [1, 2]


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_benchmark_rows_are_skipped(name):
    assert read_ledger(ROOT / "results" / f"{name}.jsonl") == []


def test_writers_at_the_same_time_lose_and_double_nothing(tmp_path, path):
    writers = 6
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in range(8)]
    together = threading.Barrier(writers)

    def write(_: int) -> int:
        failed = 0
        for run in runs:
            together.wait(timeout=60)
            try:
                record_run(run, path)
            except LedgerError:
                failed += 1
        return failed

    with ThreadPoolExecutor(writers) as pool:
        failed = sum(pool.map(write, range(writers)))
    assert [row.seed for row in read_ledger(path)] == list(range(8))
    assert failed == len(runs) * (writers - 1)
