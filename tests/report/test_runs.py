"""Reading run folders: whole ones, running ones and damaged ones."""

import json
import math

import pytest

from drill.report import read, record
from drill.report.results.runs import RunError, layer_name, read_run, read_runs
from drill.training.run.folder import RunFolder
from tests.report.folders import (
    epoch_row,
    of_weights,
    perplexities,
    test_row,
    write_evaluations,
    write_metrics,
    write_run,
)


def test_a_whole_run_is_summarised(tmp_path):
    valid = perplexities(330.0, 60.0, 30)
    folder = write_run(
        tmp_path / "drill", recipe="ptb-drill-4", layer="deep-residual", options="depth = 4\n"
    )
    run = read_run(folder)
    assert (run.name, run.recipe, run.layer) == ("drill", "ptb-drill-4", "deep-residual 4")
    assert (run.parameters, run.seed, run.epochs) == (24_221_600, 28, 30)
    assert (run.valid, run.test, run.best_epoch) == (min(valid), 58.0, 30)
    assert run.valid_published == pytest.approx(min(valid) - 0.03)
    assert run.test_published == pytest.approx(57.999)
    assert run.seconds == 30 * 12.5 + 2.0
    assert (run.device, run.commit) == ("NVIDIA H200", "abc1234")
    assert run.tokens_per_second == 74_015.5
    assert [point.valid for point in run.curve] == valid
    assert [point.epoch for point in run.curve] == list(range(1, 31))
    assert [point.averaged for point in run.curve] == [False] * 15 + [True] * 15
    assert run.curve[3].elapsed == 50.0
    assert run.settings["layer"] == {"name": "deep-residual", "depth": 4}
    assert run.environment["torch"] == "2.11.0"
    assert run.faults == ()


def test_a_run_that_is_still_going_has_its_best_epoch_and_no_test(tmp_path):
    folder = write_run(tmp_path / "run", valid=[300.0, 100.0, 120.0], test=None)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "epoch", "epo')
    run = read_run(folder)
    assert (run.epochs, run.best_epoch, run.valid, run.test) == (3, 2, 100.0, None)
    assert run.valid_published == pytest.approx(99.97)
    assert run.seconds == 37.5
    assert run.faults == ()  # a line that is being written is no fault


def test_a_run_that_has_just_begun_has_no_epoch(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    run = read_run(folder)
    assert (run.epochs, run.valid, run.test, run.seconds, run.curve) == (0, None, None, None, ())
    assert run.faults == (f"{folder}/metrics.jsonl: is missing; no epoch has ended yet",)


def test_losses_that_are_no_numbers_are_kept_but_are_never_the_best(tmp_path):
    # training writes what JSON cannot as strings
    folder = write_run(tmp_path / "run", valid=["inf", 500.0, "nan", None, 400.0], test=None)
    run = read_run(folder)
    assert [point.valid for point in run.curve[:2]] == [math.inf, 500.0]
    assert math.isnan(run.curve[2].valid)
    assert math.isnan(run.curve[3].valid)
    assert (run.valid, run.best_epoch, run.faults) == (400.0, 5, ())
    diverged = read_run(write_run(tmp_path / "other", valid=["nan"], test=None))
    assert (diverged.epochs, diverged.valid, diverged.best_epoch) == (1, None, None)


def test_an_epoch_that_was_run_again_replaces_what_came_after_it(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [epoch_row(n, 100.0 - n) for n in (1, 2, 3, 4)]
    again = [epoch_row(n, 200.0 - n) for n in (3, 4)]
    write_metrics(folder, [*rows, *again])
    assert [point.valid for point in read_run(folder).curve] == [99.0, 98.0, 197.0, 196.0]


def test_every_validation_is_known_by_its_step(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [
        {**epoch_row(epoch, valid), "step": step, "kind": kind}
        for epoch, step, valid, kind in (
            (1, 500, 99.0, "validation"),
            (1, 800, 98.0, "epoch"),
            (2, 1000, 97.0, "validation"),
            (2, 1500, 96.0, "validation"),
            (2, 1000, 95.0, "validation"),  # run again from the end of the epoch before
            (2, 1500, "nan", "validation"),
        )
    ]
    del rows[1]["train_perplexity"]
    write_metrics(folder, [*rows, {"kind": "average", "step": 1600, "valid_perplexity": 1.0}])
    *known, (step, wrong, *_) = read_run(folder).validations
    train = 90.0
    assert known == [(500, 99.0, train, 12.5), (800, 98.0, None, 12.5), (1000, 95.0, train, 25.0)]
    assert (step, math.isnan(wrong)) == (1500, True)
    row = record(folder, tmp_path / "runs.jsonl")
    assert row.validations == [
        [500, 99.0, train, 12.5],
        [800, 98.0, None, 12.5],
        [1000, 95.0, train, 25.0],
        [1500, None, train, 25.0],
    ]
    assert read(tmp_path / "runs.jsonl") == [row]


def test_of_an_epoch_that_was_not_ended_the_last_validation_stands(tmp_path):
    folder = write_run(tmp_path / "run")
    inside = [{**epoch_row(epoch, valid), "kind": "validation"} for epoch, valid in
              ((1, 99.0), (1, 98.0), (2, 96.0), (2, 95.0))]  # fmt: skip
    write_metrics(folder, [*inside[:2], epoch_row(1, 97.0), *inside[2:]])
    assert [(each.epoch, each.valid) for each in read_run(folder).curve] == [(1, 97.0), (2, 95.0)]
    write_metrics(folder, inside[:2])  # the clock ended it
    assert read_run(folder).epochs == 1


def test_the_validation_before_training_is_epoch_zero(tmp_path):
    folder = write_run(tmp_path / "run")
    write_metrics(folder, [epoch_row(0, 60.0), epoch_row(1, 61.0)])
    run = read_run(folder)
    assert (run.epochs, run.best_epoch, run.valid) == (1, 0, 60.0)


def test_rows_of_other_kinds_are_passed_over(tmp_path):
    folder = write_run(tmp_path / "run")
    write_metrics(folder, [epoch_row(1, 90.0), {"kind": "dynamic", "test_perplexity": 50.0}])
    run = read_run(folder)
    assert (run.epochs, run.test, run.faults) == (1, None, ())


def test_the_last_test_counts(tmp_path):
    folder = write_run(tmp_path / "run")
    write_metrics(
        folder, [epoch_row(1, 90.0), test_row(1, 90.0, 88.0, 9.0), test_row(1, 90, 87, 10)]
    )
    assert read_run(folder).test == 87.0


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("recipe.toml", None, "is missing"),
        ("recipe.toml", b"[layer", "is not TOML"),
        ("recipe.toml", b"x = '\xff'", "is not UTF-8"),
        ("environment.json", None, "is missing"),
        ("environment.json", b"", "is not JSON"),
        ("environment.json", b"[1, 2]", "holds no JSON object"),
        ("environment.json", b"[" * 100_000, "is not JSON"),
        ("metrics.jsonl", b'{"kind": "epoch"\n{"kind": "test"}\n', "line 1 is not a JSON object"),
        ("metrics.jsonl", b"7\n", "line 1 is not a JSON object"),
        ("metrics.jsonl", b'{"kind": "epoch", "epoch": "one"}\n', "line 1 names no epoch"),
        ("metrics.jsonl", b"\xff\n", "line 1 is not a JSON object"),
    ],
)
def test_what_is_missing_or_damaged_is_named_in_one_sentence(tmp_path, file, content, fault):
    folder = write_run(tmp_path / "run")
    path = folder / file
    path.unlink() if content is None else path.write_bytes(content)
    run = read_run(folder)
    assert any(sentence.startswith(f"{path}: ") and fault in sentence for sentence in run.faults)
    assert all("\n" not in sentence for sentence in run.faults)
    assert run.name == "run"


def test_rows_around_a_damaged_line_are_used(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [json.dumps(epoch_row(n, 100.0 - n)) for n in (1, 2, 3)]
    rows[1] = rows[1][:40]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    run = read_run(folder)
    assert [point.epoch for point in run.curve] == [1, 3]
    assert "line 2" in run.faults[0]


def test_values_of_the_wrong_kind_are_as_good_as_missing(tmp_path):
    folder = write_run(tmp_path / "run", parameters="many", device=7, commit=None)
    rows = [epoch_row(1, 90.0, elapsed="soon", tokens_per_second=[], averaged="yes")]
    write_metrics(folder, [*rows, epoch_row(2, 10**400)])
    run = read_run(folder)
    assert (run.parameters, run.device, run.commit) == (None, None, None)
    assert run.curve[0].elapsed is None
    assert run.curve[0].averaged is False
    assert run.curve[1].valid == math.inf


@pytest.mark.parametrize(
    ("first", "later", "told"),
    [
        ("one", [], "one"),
        ("one", ["one", "one"], "one"),
        ("one", ["two", "two", "one"], "one, then two, then one"),
        ("one", [None], "one, then unknown"),
        (None, ["two"], "unknown, then two"),
        (None, [None], None),
    ],
)
def test_commit_and_device_are_those_of_every_life(tmp_path, first, later, told):
    resumed = [{"commit": each, "device": each} for each in later]
    folder = write_run(tmp_path / "run", commit=first, device=first, resumed=resumed)
    run = read_run(folder)
    assert (run.commit, run.device) == (told, told)


@pytest.mark.parametrize("resumed", ["once", [7], {"commit": "two"}])
def test_lives_that_are_none_are_passed_over(tmp_path, resumed):
    assert read_run(write_run(tmp_path / "run", resumed=resumed)).commit == "abc1234"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="none: is no folder; name a run folder"):
        read_run(tmp_path / "none")
    with pytest.raises(RunError, match=r"holds neither recipe.toml nor environment.json nor "):
        read_run(tmp_path)


def test_equal_names_are_told_apart_by_their_parents(tmp_path):
    places = ["a/one", "b/one", "b/two", "c/x/one"]
    folders = [write_run(tmp_path / place) for place in places]
    assert [run.name for run in read_runs(folders)] == ["a/one", "b/one", "two", "x/one"]
    deep = [write_run(tmp_path / place) for place in ("p/x/same", "q/x/same")]
    assert [run.name for run in read_runs(deep)] == ["p/x/same", "q/x/same"]


def test_a_folder_given_twice_is_read_once(tmp_path):
    folder = write_run(tmp_path / "one")
    runs = read_runs([folder, folder / ".." / "one", str(folder)])
    assert [run.name for run in runs] == ["one"]


def test_a_run_is_named_after_its_folder_even_from_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "inside"))
    assert read_run(".").name == "inside"


def test_runs_that_differ_by_seed_alone_have_equal_settings(tmp_path):
    first = read_run(write_run(tmp_path / "a", seed=1))
    second = read_run(write_run(tmp_path / "b", seed=2))
    third = read_run(write_run(tmp_path / "c", seed=1, options="dropout = 0.5\n"))
    assert first.settings_digest == second.settings_digest
    assert first.settings_digest != third.settings_digest
    assert first.fingerprint != second.fingerprint


def test_finetuned_runs_of_one_recipe_belong_together_whatever_they_start_from(tmp_path):
    runs = []
    for seed, start in [(1, "runs/x"), (2, "runs/y"), (3, None)]:
        folder = write_run(tmp_path / str(seed), seed=seed)
        recipe = folder / "recipe.toml"
        line = f'start = "{start}"\n' if start else ""
        recipe.write_text(line + recipe.read_text())
        runs.append(read_run(folder))
    assert runs[0].settings_digest == runs[1].settings_digest != runs[2].settings_digest


def test_a_copy_of_a_run_has_its_fingerprint_and_a_longer_run_has_not(tmp_path):
    run = read_run(write_run(tmp_path / "a", valid=[90.0, 80.0]))
    assert read_run(write_run(tmp_path / "b", valid=[90.0, 80.0])).fingerprint == run.fingerprint
    longer = write_run(tmp_path / "c", valid=[90.0, 80.0, 70.0])
    assert read_run(longer).fingerprint != run.fingerprint
    untested = write_run(tmp_path / "d", valid=[90.0, 80.0], test=None)
    assert read_run(untested).fingerprint != run.fingerprint


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ({"name": "tied", "bias": True}, "tied"),
        ({"name": "deep-residual", "depth": 4}, "deep-residual 4"),
        ({"name": "mixture", "experts": 15, "over": {"name": "tied"}}, "mixture 15 x tied"),
        (
            {"name": "sampled", "samples": 64, "over": {"name": "deep-residual", "depth": 2}},
            "sampled 64 x deep-residual 2",
        ),
        ({"name": 7}, None),
        ("tied", None),
        (None, None),
    ],
)
def test_layers_are_called_by_name_and_size(table, name):
    assert layer_name(table) == name


def test_the_last_evaluation_of_each_kind_split_and_setting_counts(tmp_path):
    folder = write_run(tmp_path / "run")
    assert read_run(folder).evaluations == ()
    dynamic = {
        **of_weights(folder),
        "kind": "dynamic",
        "split": "test",
        "perplexity": 52.0,
        "published": 51.9,
        "lr": 1e-4,
    }
    rows = [
        {**dynamic, "perplexity": 60.0},
        dynamic,
        {**dynamic, "split": "valid", "loss": math.nan, "lr": [1]},
        {"kind": "plain", "split": "test", "perplexity": 58.0},
        {"kind": "cache", "split": "test", "perplexity": "inf"},
    ]
    write_evaluations(folder, rows, tail='{"kind": "cac')
    run = read_run(folder)
    valid = {key: value for key, value in dynamic.items() if key != "lr"} | {"split": "valid"}
    assert run.evaluations == (dynamic, valid)
    assert run.faults == run.remarks == ()


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
    assert run.faults == ()
    path = f"{folder}/evaluations.jsonl"
    assert run.remarks == (
        f"{path}: lines 1, 3 are left out, since no weights are named there; evaluate the run "
        "again",
        f"{path}: line 2 is left out, since other weights were evaluated (best of epoch 2) than "
        "the run's figures are of; evaluate the run again",
        f"{path}: line 5 is left out, since other weights were evaluated (last of step 40) than "
        "the run's figures are of; evaluate the run again",
    )


@pytest.mark.parametrize("content", [None, b"no weights"])
def test_evaluations_of_weights_that_are_gone_are_left_out_with_a_remark(tmp_path, content):
    folder = write_run(tmp_path / "run")
    row = {"kind": "cache", "split": "test", "perplexity": 70.0, **of_weights(folder)}
    write_evaluations(folder, [row])
    best = folder / "best.safetensors"
    best.unlink() if content is None else best.write_bytes(content)
    run = read_run(folder)
    assert (run.evaluations, run.faults) == ((), ())
    (remark,) = run.remarks
    assert "nobody can say whether they are of the tested weights" in remark
    assert str(best) in remark


def test_evaluations_are_told_apart_by_the_line_of_the_test_where_no_weights_are(tmp_path):
    """Lines are carried home from the machine that trained; weights are not."""
    folder = write_run(tmp_path / "run")
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
    assert "line 2 is left out, since other weights were evaluated" in run.remarks[0]


@pytest.mark.parametrize("split", ["files", "test"])  # older runs have the name of the file
def test_files_of_ones_own_are_none_of_the_runs_figures(tmp_path, split):
    folder = write_run(tmp_path / "run")
    band = {"low": 0, "high": None, "types": 3, "wanted": 9, "written": 8, "matched": 5}
    row = {"kind": "translation", "perplexity": 5.0, "subword_bands": [band], **of_weights(folder)}
    test, own = {**row, "split": "test"}, {**row, "split": split, "reference": "ours.de"}
    write_evaluations(folder, [test, own])
    run = read_run(folder)
    assert (run.evaluations, run.faults, run.remarks) == ((test,), (), ())


def test_words_by_frequency_are_kept_with_their_bands(tmp_path):
    folder = write_run(tmp_path / "run")
    band = {"low": 0, "high": None, "types": 3, "wanted": 9, "written": 8, "matched": 5}
    row = {"kind": "translation", "split": "test", "perplexity": 5.0, "bleu": 30.0, "beam": 4}
    row |= of_weights(folder)
    words = {**row, "subword_bands": [band]}
    again = {**words, "bleu": 31.0, "seconds": 2.0}
    wider = {**words, "beam": 8}
    write_evaluations(folder, [words, wider, again, row])  # the last says nothing of words
    assert read_run(folder).evaluations == (wider, again)


@pytest.mark.parametrize("bands", [7, [7], [{"low": 0}], [{"low": 0, "high": None, "types": "3",
                                   "wanted": 9, "written": 8, "matched": 5}]])  # fmt: skip
def test_bands_that_hold_no_counts_are_named(tmp_path, bands):
    folder = write_run(tmp_path / "run")
    row = {"kind": "translation", "split": "test", "perplexity": 5.0, "word_bands": bands}
    write_evaluations(folder, [row])
    run = read_run(folder)
    assert run.evaluations == ()
    assert run.faults == (
        f"{folder}/evaluations.jsonl: line 1 has bands without counts; it is left out",
    )


def test_a_damaged_evaluation_is_named(tmp_path):
    folder = write_run(tmp_path / "run")
    write_evaluations(folder, [{"kind": 7}], tail="nothing\n")
    assert read_run(folder).faults == (
        f"{folder}/evaluations.jsonl: line 2 is not a JSON object; it is left out",
        f"{folder}/evaluations.jsonl: line 1 names no kind and split; it is left out",
    )
