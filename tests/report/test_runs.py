"""Reading run folders, finished and running."""

import math

import pytest

from drill.report import read_ledger, record_run
from drill.report.results.runs import RunError, read_run, read_runs
from drill.training.run.folder import RunFolder
from tests.report.folders import (
    epoch_row,
    of_weights,
    test_row,
    write_evaluations,
    write_metrics,
    write_run,
)


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run")


def test_a_run_that_is_still_going_has_no_test(tmp_path):
    folder = write_run(tmp_path / "run", valid=[300.0, 100.0, 120.0], test=None)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "epoch", "epo')  # being written
    run = read_run(folder)
    assert (run.epochs, run.best_epoch, run.valid, run.test) == (3, 2, 100.0, None)
    assert run.valid_all_tokens == pytest.approx(99.97)
    assert run.seconds == 37.5
    (folder / "metrics.jsonl").unlink()
    run = read_run(folder)
    assert (run.epochs, run.valid, run.test, run.seconds, run.curve) == (0, None, None, None, ())


def test_losses_that_are_not_finite_are_never_the_best(tmp_path):
    folder = write_run(tmp_path / "run", valid=["inf", 500.0, "nan", None, 400.0], test=None)
    run = read_run(folder)
    assert [point.valid for point in run.curve[:2]] == [math.inf, 500.0]
    assert all(math.isnan(point.valid) for point in run.curve[2:4])
    assert (run.valid, run.best_epoch) == (400.0, 5)
    diverged = read_run(write_run(tmp_path / "other", valid=["nan"], test=None))
    assert (diverged.epochs, diverged.valid, diverged.best_epoch) == (1, None, None)


def inside(epoch, valid):
    return {**epoch_row(epoch, valid), "kind": "validation", "position": 1, "epoch_size": 2}


@pytest.mark.parametrize(
    ("rows", "curve", "epochs"),
    [
        ([inside(1, 99.0), epoch_row(1, 97.0), inside(2, 96.0), inside(2, 95.0)], [97, 95], 1.5),
        ([inside(1, 99.0), inside(1, 98.0)], [98], 0.5),  # stopped by the clock
        ([epoch_row(1, 90.0), {"kind": "dynamic", "epoch": 1, "test_perplexity": 50.0}], [90], 1),
    ],
    ids=["last validation", "unfinished epoch", "other rows"],
)
def test_the_curve_has_the_last_validation_of_each_epoch(folder, rows, curve, epochs):
    write_metrics(folder, rows)
    run = read_run(folder)
    assert [point.valid for point in run.curve] == curve
    assert (run.epochs, run.test) == (epochs, None)


def test_every_validation_is_known_by_its_step(tmp_path, folder):
    rows = [
        {**inside(epoch, valid), "step": step, "kind": kind}
        for epoch, step, valid, kind in (
            (1, 500, 99.0, "validation"),
            (1, 800, 98.0, "epoch"),
            (2, 1000, 95.0, "validation"),
            (2, 1500, "nan", "validation"),
        )
    ]
    del rows[1]["train_perplexity"]
    write_metrics(folder, [*rows, {"kind": "average", "epoch": 2, "step": 1600}])
    assert math.isnan(read_run(folder).validations[-1].valid)
    row, train = record_run(folder, tmp_path / "runs.jsonl"), 90.0
    assert row.validations == [
        [500, 99.0, train, 12.5],
        [800, 98.0, None, 12.5],
        [1000, 95.0, train, 25.0],
        [1500, None, train, 25.0],
    ]
    assert read_ledger(tmp_path / "runs.jsonl") == [row]


def test_the_validation_before_training_is_epoch_zero_and_the_last_test_counts(folder):
    rows = [epoch_row(0, 60.0), epoch_row(1, 61.0)]
    write_metrics(folder, rows)
    run = read_run(folder)
    assert (run.epochs, run.best_epoch, run.valid) == (1, 0, 60.0)
    write_metrics(folder, [*rows, test_row(0, 60.0, 59.0, 9.0), test_row(0, 60.0, 58.0, 10)])
    assert read_run(folder).test == 58.0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("recipe.toml", b"[layer"),
        ("environment.json", b"[1, 2]"),
        ("metrics.jsonl", b'{"kind": "epoch"\n{"kind": "test"}\n'),
        ("evaluations.jsonl", b"nothing\n"),
    ],
)
def test_a_damaged_file_is_named(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(RunError, match=f"{folder / file}: "):
        read_run(folder)


@pytest.mark.parametrize(
    ("first", "resumed", "joined"),
    [
        ("one", [], "one"),
        ("one", ["two", "two", "one"], "one, then two, then one"),
        ("one", [None], "one, then unknown"),
        (None, ["two"], "unknown, then two"),
        (None, [None], None),
    ],
)
def test_the_commit_is_that_of_every_start(tmp_path, first, resumed, joined):
    resumed = [{"commit": commit} if commit else {} for commit in resumed]
    assert read_run(write_run(tmp_path / "run", commit=first, resumed=resumed)).commit == joined


def test_a_folder_without_a_run_is_an_error(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(RunError, match=str(folder)):
            read_run(folder)


def test_names_are_distinct(tmp_path, monkeypatch):
    places = ["a/one", "b/one", "b/two", "c/x/one"]
    folders = [write_run(tmp_path / place) for place in places]
    twice = [*folders, folders[0] / ".." / "one", str(folders[0])]
    assert [run.name for run in read_runs(twice)] == ["a/one", "b/one", "two", "x/one"]
    deep = [write_run(tmp_path / place) for place in ("p/x/same", "q/x/same")]
    assert [run.name for run in read_runs(deep)] == ["p/x/same", "q/x/same"]
    monkeypatch.chdir(folders[0])
    assert read_run(".").name == "one"


def test_the_last_evaluation_of_each_kind_split_and_setting_counts(folder):
    assert read_run(folder).evaluations == ()
    dynamic = {
        **of_weights(folder), "kind": "dynamic", "split": "test", "perplexity": 52.0,
        "perplexity_all_tokens": 51.9, "lr": 1e-4,
    }  # fmt: skip
    rows = [
        {**dynamic, "perplexity": 60.0},
        dynamic,
        valid := {**dynamic, "split": "valid"},
        {"kind": "plain", "split": "test", "perplexity": 58.0},
        {"kind": "cache", "split": "test", "perplexity": "inf"},
        bands := {**dynamic, "kind": "translation", "subword_bands": [{"low": 0}]},
        {**bands, "split": "files", "reference": "ours.de"},
    ]
    write_evaluations(folder, rows, tail='{"kind": "cac')
    run = read_run(folder)
    assert run.evaluations == (dynamic, valid, bands)
    assert run.remarks == ()


def test_evaluations_of_other_weights_are_left_out_with_a_remark(tmp_path):
    folder = write_run(tmp_path / "run", valid=[90.0, 80.0])
    row = {"kind": "cache", "split": "test", "perplexity": 70.0, "theta": 1.0}
    early = {**row, **of_weights(folder)}
    write_run(folder, valid=[90.0, 80.0, 70.0, 60.0])  # it was trained on
    last = {**row, "weights": "last", "weights_step": 40, "weights_fingerprint": "0" * 16}
    own = {**row, **of_weights(folder), "perplexity": 50.0}
    write_evaluations(folder, [row, early, row, own, last])
    run = read_run(folder)
    assert run.evaluations == (own,)
    (remark,) = run.remarks
    assert remark.startswith(f"{folder}/evaluations.jsonl: left out 4 of other weights")


@pytest.mark.parametrize("content", [None, b"no weights"])
def test_evaluations_of_weights_that_are_gone_are_left_out_with_a_remark(folder, content):
    row = {"kind": "cache", "split": "test", "perplexity": 70.0, **of_weights(folder)}
    write_evaluations(folder, [row])
    best = folder / "best.safetensors"
    best.unlink() if content is None else best.write_bytes(content)
    run = read_run(folder)
    assert run.evaluations == ()
    (remark,) = run.remarks
    assert str(best) in remark


def test_the_line_of_the_test_names_the_weights_where_there_are_none(folder):
    own = {"kind": "cache", "split": "test", "perplexity": 70.0, **of_weights(folder)}
    other = {**own, "weights_fingerprint": "0" * 16}
    write_evaluations(folder, [own, other])
    rows = RunFolder(folder).rows()
    rows[-1]["weights_fingerprint"] = own["weights_fingerprint"]
    write_metrics(folder, rows)
    (folder / "best.safetensors").unlink()
    run = read_run(folder)
    assert run.evaluations == (own,)
    assert len(run.remarks) == 1
