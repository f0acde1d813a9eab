"""The ledger: rows are added whole, never twice, never changed."""

import dataclasses
import errno
import json
import math
import os
import re
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from drill.report import read_run
from drill.report.results import ledger
from drill.report.results.ledger import LedgerError, read, record
from drill.training.settings import recipe
from tests.report.folders import of_weights, write_evaluations, write_run

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_a_row_says_what_was_measured_and_where(tmp_path):
    run = write_run(tmp_path / "runs" / "tied", valid=[90.0, 60.5, 61.0], test=58.0)
    path = tmp_path / "results" / "runs.jsonl"
    row = record(run, path, "first try", {"dynamic_test": 51.2}, now=NOW)
    assert json.loads(path.read_text()) == {
        "kind": "result",
        "name": "tied",
        "recipe": "ptb-tied",
        "layer": "tied",
        "parameters": 24_221_600,
        "seed": 28,
        "epochs": 3,
        "best_epoch": 2,
        "valid": 60.5,
        "test": 58.0,
        "valid_published": 60.47,
        "test_published": 57.999,
        "seconds": 39.5,
        "tokens_per_second": 74_002.0,
        "device": "NVIDIA H200",
        "commit": "abc1234",
        "torch": "2.11.0",
        "precision": "tf32",
        "world_size": 1,
        "started": "2026-11-15T08:00:00+00:00",
        "recorded": "2026-11-15T09:30:00+00:00",
        "note": "first try",
        "evaluations": [],
        "extra": {"dynamic_test": 51.2},
        "settings_digest": row.settings_digest,
        "fingerprint": row.fingerprint,
        "curve": [[1, 90.0, 89.97], [2, 60.5, 60.47], [3, 61.0, 60.97]],
        "validations": [
            [687, 90.0, 90.0, 12.5],
            [1374, 60.5, 90.0, 25.0],
            [2061, 61.0, 90.0, 37.5],
        ],
        "lives": [],
        "settings": {
            "recipe": "ptb-tied",
            "data": {"corpus": "ptb"},
            "encoder": {"widths": [400, 1150, 1150, 400]},
            "layer": {"name": "tied"},
            "optimizer": {"lr": 30.0},
            "training": {"epochs": 3, "seed": 28},
        },
        "changes": [
            "encoder.widths: none -> [400, 1150, 1150, 400]",
            "training.epochs: 500 -> 3",
        ],
    }
    assert read(path) == [row]


def test_a_run_that_was_resumed_elsewhere_says_where(tmp_path):
    life = {"commit": "def5678", "device": "a laptop", "torch": "2.11.0", "precision": "float32"}
    life |= {"world_size": 2, "started": "2026-11-16T08:00:00+00:00"}
    run, path = write_run(tmp_path / "a", resumed=[life]), tmp_path / "runs.jsonl"
    row = record(run, path)
    assert row.device == "NVIDIA H200, then a laptop"
    assert row.commit == "abc1234, then def5678"
    assert (row.torch, row.precision) == ("2.11.0", "tf32, then float32")
    assert (row.world_size, row.started) == (1, "2026-11-15T08:00:00+00:00")
    first = {"commit": "abc1234", "device": "NVIDIA H200", "torch": "2.11.0", "precision": "tf32"}
    first |= {"world_size": 1, "started": "2026-11-15T08:00:00+00:00"}
    assert row.lives == [first, life]
    assert read(path) == [row]


def test_rows_are_added_and_old_ones_stay_as_they_are(tmp_path):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a", seed=1), path, now=NOW)
    before = path.read_bytes()
    record(write_run(tmp_path / "b", seed=2), path, "ümlaut\nand line", now=NOW)
    assert path.read_bytes().startswith(before)
    assert [row.seed for row in read(path)] == [1, 2]
    assert read(path)[1].note == "ümlaut\nand line"
    assert len(lines(path)) == 2


def test_a_result_is_recorded_once_unless_forced(tmp_path):
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    record(run, path)
    copy = write_run(tmp_path / "copy")
    with pytest.raises(LedgerError, match=r"copy: is already in .*runs.jsonl, line 1; say --force"):
        record(copy, path)
    assert len(lines(path)) == 1
    record(copy, path, "again", force=True)
    assert [row.note for row in read(path)] == ["", "again"]


def test_a_run_that_went_on_is_another_result(tmp_path):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a", valid=[90.0], test=None), path)
    record(write_run(tmp_path / "a", valid=[90.0, 80.0]), path)
    assert [(row.epochs, row.test) for row in read(path)] == [(1, None), (2, 58.0)]


def test_an_evaluation_is_a_row_of_its_own_that_names_the_result(tmp_path):
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    first = record(run, path)
    before = path.read_bytes()
    dynamic = {"kind": "dynamic", "split": "test", "perplexity": 51.0, "lr": 5e-5}
    dynamic |= of_weights(run)
    write_evaluations(run, [dynamic])
    row = record(run, path, "later", now=NOW)
    assert path.read_bytes().startswith(before)
    assert json.loads(lines(path)[1]) == {
        "kind": "evaluation",
        "fingerprint": first.fingerprint,
        "evaluation": dynamic,
        "recorded": "2026-11-15T09:30:00+00:00",
        "note": "later",
    }
    assert read(path) == [row]  # one result, however often it is evaluated
    assert row == dataclasses.replace(first, evaluations=[dynamic])
    with pytest.raises(LedgerError, match=r"is already in .*runs.jsonl, line 1"):
        record(run, path)
    better, cache = {**dynamic, "perplexity": 50.0}, {**dynamic, "kind": "cache"}
    write_evaluations(run, [dynamic, better, cache])
    assert record(run, path).evaluations == [better, cache]
    assert [json.loads(line)["kind"] for line in lines(path)] == ["result", *["evaluation"] * 3]


def test_an_evaluation_names_the_run_and_not_where_it_lay(tmp_path):
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    found = {"kind": "cache", "split": "test", "perplexity": 51.0, **of_weights(run)}
    write_evaluations(run, [{"run": str(run), **found}])
    (evaluation,) = record(run, path).evaluations
    assert evaluation == {"run": "a", **found}
    old = path.read_text().replace('"run": "a"', f'"run": "{run}"')
    path.write_text(old)
    (row,) = read(path)
    assert row.evaluations == [{"run": str(run), **found}]  # what stands there stays
    with pytest.raises(LedgerError, match="is already in"):  # and is the same evaluation
        record(run, path)
    assert path.read_text() == old


def test_a_finetuned_run_names_where_it_started_and_not_where_that_lay(tmp_path):
    run = write_run(tmp_path / "a-finetune")
    recipe_file = run / "recipe.toml"
    recipe_file.write_text(f'start = "{tmp_path / "a"}"\n{recipe_file.read_text()}')
    assert record(run, tmp_path / "runs.jsonl").settings["start"] == "a"
    with pytest.raises(LedgerError, match="is already in"):
        record(run, tmp_path / "runs.jsonl")


def test_a_run_that_went_on_leaves_evaluations_of_its_old_weights_behind(tmp_path):
    run, path = write_run(tmp_path / "a", valid=[90.0, 80.0]), tmp_path / "runs.jsonl"
    write_evaluations(
        run, [{"kind": "cache", "split": "test", "perplexity": 70.0, **of_weights(run)}]
    )
    assert len(record(run, path).evaluations) == 1
    write_run(run, valid=[90.0, 80.0, 70.0, 60.0])
    assert record(run, path).evaluations == []
    assert [len(row.evaluations) for row in read(path)] == [1, 0]


def test_evaluations_by_other_settings_stand_beside_each_other(tmp_path):
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    first = {"kind": "cache", "split": "test", "perplexity": 70.0, "theta": 1.0, **of_weights(run)}
    record(run, path)
    write_evaluations(run, [first, other := {**first, "theta": 0.5}])
    assert record(run, path).evaluations == [first, other]
    again = {**first, "perplexity": 69.0}
    write_evaluations(run, [first, other, again])
    assert record(run, path).evaluations == [other, again]


def test_a_row_says_what_it_changes_of_its_recipe(tmp_path):
    """`drill train NAME --set ...` is not what the name alone says."""
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    changes = ["optimizer.lr=5e-4", "training.max_minutes=8.7", "training.seed=7"]
    settings = recipe("europarl-tied", changes).to_toml()
    (run / "recipe.toml").write_text(settings)
    row = record(run, path)
    wanted = ["optimizer.lr: 0.0007 -> 0.0005", "training.max_minutes: none -> 8.7"]
    assert row.changes == wanted
    assert row.settings == tomllib.loads(settings)
    assert read(path) == [row]


def test_of_a_recipe_of_ones_own_the_settings_alone_tell(tmp_path):
    run, path = write_run(tmp_path / "a", recipe="mine"), tmp_path / "runs.jsonl"
    with (run / "recipe.toml").open("a") as stream:
        stream.write("save_every = inf\nday = 2026-01-01\n")
    row = record(run, path)
    assert row.changes is None
    assert row.settings["training"]["save_every"] == "Infinity"
    assert row.settings["training"]["day"] == "2026-01-01"
    assert read(path) == [row]


def test_rows_in_the_ledger_stay_readable():
    """Those of before settings and changes too."""
    rows = read(ROOT / "results/runs.jsonl")
    assert rows[0].changes is None
    assert rows[0].settings == {}


def test_a_row_from_before_curves_and_lives_is_still_read(tmp_path):
    path = tmp_path / "runs.jsonl"
    row = record(write_run(tmp_path / "a"), path)
    held = json.loads(path.read_text())
    later = {"curve": [], "validations": [], "lives": [], "settings": {}, "changes": None}
    path.write_text(json.dumps({key: held[key] for key in held if key not in later}) + "\n")
    assert read(path) == [dataclasses.replace(row, **later)]


def test_the_fingerprint_of_a_recorded_run_stays(tmp_path):
    """Older rows have it: another way to compute it would let every run in twice."""
    run = write_run(tmp_path / "a", valid=[90.0, 60.5], test=58.0)
    assert read_run(run).fingerprint == "d86de1ea98681b12"


def test_a_run_that_diverged_is_a_result_too(tmp_path):
    path = tmp_path / "runs.jsonl"
    row = record(write_run(tmp_path / "a", valid=["nan", "inf"], test=None), path, "lr 60")
    assert (row.valid, row.test, row.epochs) == (None, None, 2)
    assert row.curve == [[1, None, None], [2, None, None]]
    assert "NaN" not in path.read_text()


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("recipe.toml", "recipe.toml: is missing"),
        ("environment.json", "environment.json: is missing"),
        ("metrics.jsonl", "metrics.jsonl: is missing"),
    ],
)
def test_a_run_that_cannot_be_told_is_not_recorded(tmp_path, file, fault):
    run, path = write_run(tmp_path / "a"), tmp_path / "runs.jsonl"
    (run / file).unlink()
    with pytest.raises(LedgerError, match=fault):
        record(run, path)
    assert not path.exists()


def test_a_run_without_an_epoch_is_not_recorded(tmp_path):
    with pytest.raises(LedgerError, match="a: has no epoch yet; record it when one has ended"):
        record(write_run(tmp_path / "a", valid=[]), tmp_path / "runs.jsonl")


def test_a_time_without_a_zone_is_refused(tmp_path):
    with pytest.raises(ValueError, match="record: now needs a time zone"):
        record(write_run(tmp_path / "a"), tmp_path / "runs.jsonl", now=NOW.replace(tzinfo=None))


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are always UTF-8")
def test_a_name_that_is_not_utf8_is_recorded_all_the_same(tmp_path):
    folder = write_run(tmp_path / os.fsdecode(b"caf\xe9"), device="a\ud800b")
    path = tmp_path / "runs.jsonl"
    row = record(folder, path, "\udcff")
    assert read(path) == [row]
    assert row.name == os.fsdecode(b"caf\xe9")
    path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("extra", [{"x": math.nan}, {"x": object()}, {"x": {"y": math.inf}}])
def test_extra_figures_are_json(tmp_path, extra):
    path = tmp_path / "runs.jsonl"
    with pytest.raises(LedgerError, match="extra holds what JSON cannot"):
        record(write_run(tmp_path / "a"), path, extra=extra)
    assert not path.exists()


# -- damaged and foreign files --------------------------------------------------------------------


def test_a_missing_ledger_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"none.jsonl: cannot be read"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"kind": "result"', "line 2 is not a JSON object"),
        (b"[]", "line 2 is not a JSON object"),
        (b"\xff\xfe", "line 2 is not a JSON object"),
        (b'{"kind": "result"}', "line 2 is no result; name, recipe, layer and 22 more"),
        (b'{"some": "thing"}', "line 2 is no result; it has kind None"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_added_to_it(tmp_path, line, fault):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a", seed=1), path)
    with path.open("ab") as stream:
        stream.write(line + b"\n")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=fault):
        read(path)
    with pytest.raises(LedgerError, match=fault):
        record(write_run(tmp_path / "b", seed=2), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 7),
        ("valid", "low"),
        ("epochs", None),
        ("extra", []),
        ("seed", 1.5),
        ("evaluations", [1]),
        ("curve", [[1, "low", 2.0]]),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path, field, value):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a"), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}) + "\n")
    with pytest.raises(LedgerError, match=re.escape(f"line 1 is no result; {field} is {value!r}")):
        read(path)


def test_a_last_line_without_its_end_is_ended_first(tmp_path):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a", seed=1), path)
    path.write_text(path.read_text().rstrip("\n"))  # an editor did that
    record(write_run(tmp_path / "b", seed=2), path)
    assert [row.seed for row in read(path)] == [1, 2]


def test_empty_lines_are_passed_over_and_keep_their_numbers(tmp_path):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a"), path)
    path.write_text("\n\n" + path.read_text())
    assert len(read(path)) == 1
    with pytest.raises(LedgerError, match="line 3"):
        record(write_run(tmp_path / "b"), path)


def test_fields_of_a_later_version_do_no_harm(tmp_path):
    path = tmp_path / "runs.jsonl"
    row = record(write_run(tmp_path / "a"), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}) + "\n")
    assert read(path) == [row]


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_benchmark_rows_are_no_results_and_stay_among_themselves(tmp_path, name):
    path = tmp_path / f"{name}.jsonl"
    before = (ROOT / "results" / f"{name}.jsonl").read_bytes()
    path.write_bytes(before)
    assert read(path) == []
    with pytest.raises(LedgerError, match=r"holds benchmark rows; record runs in another file"):
        record(write_run(tmp_path / "a"), path)
    assert path.read_bytes() == before


# -- writing --------------------------------------------------------------------------------------


def test_writers_at_the_same_time_lose_and_double_nothing(tmp_path):
    path, writers = tmp_path / "runs.jsonl", 6
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in range(8)]
    together = threading.Barrier(writers)

    def write(_: int) -> int:
        refused = 0
        for run in runs:
            together.wait(timeout=60)
            try:
                record(run, path)
            except LedgerError:
                refused += 1
        return refused

    with ThreadPoolExecutor(writers) as pool:
        refused = sum(pool.map(write, range(writers)))
    assert [row.seed for row in read(path)] == list(range(8))
    assert refused == len(runs) * (writers - 1)


def test_a_ledger_that_was_replaced_while_waiting_is_opened_again(tmp_path, monkeypatch):
    path, locks = tmp_path / "runs.jsonl", []

    def lock(handle, how):
        if not locks:
            path.unlink()  # an editor writes a new file over the old one
            path.write_text("\n")
        locks.append(handle)

    monkeypatch.setattr("fcntl.flock", lock)
    record(write_run(tmp_path / "a"), path)
    assert len(read(path)) == 1
    assert len(locks) == 2


def test_a_row_that_does_not_fit_the_disk_leaves_no_part_behind(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    record(write_run(tmp_path / "a", seed=1), path)
    before = path.read_bytes()

    def full(handle, data):
        written = os.pwrite(handle, data[:10], os.fstat(handle).st_size)
        assert written == 10
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger.os, "write", full)
    with pytest.raises(LedgerError, match=r"cannot be written \(No space left on device\)"):
        record(write_run(tmp_path / "b", seed=2), path)
    assert path.read_bytes() == before


def test_a_short_write_is_carried_on(tmp_path, monkeypatch):
    path, whole = tmp_path / "runs.jsonl", os.write
    monkeypatch.setattr(ledger.os, "write", lambda handle, data: whole(handle, data[:100]))
    record(write_run(tmp_path / "a"), path)
    monkeypatch.undo()
    assert len(read(path)) == 1


def test_a_ledger_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"runs.jsonl: cannot be written"):
        record(write_run(tmp_path / "a"), tmp_path / "file" / "runs.jsonl")


def test_a_system_without_locks_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    path = tmp_path / "runs.jsonl"
    with pytest.raises(LedgerError, match="this system has no file locks"):
        record(write_run(tmp_path / "a"), path)
    assert not path.exists()
