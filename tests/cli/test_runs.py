"""The commands around runs, from a text to a report: what they print, write and refuse."""

import errno
import gzip
import importlib
import inspect
import json
import logging
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drill.cli import display
from drill.cli.compare_runs import Compared
from drill.errors import RunFolderError, SettingsError
from drill.language_modeling.cache_pointer import cache_perplexity
from drill.language_modeling.dynamic_evaluation import dynamic_perplexity
from drill.language_modeling.gradient_statistics import Statistics, gradient_statistics
from drill.language_modeling.perplexity import Perplexity
from drill.language_modeling.run import load_run
from drill.language_modeling.scoring import score
from drill.recipes.reader import recipe_names
from drill.report.results.runs import RunError
from drill.report.tables import number_format as numbers
from drill.training import progress as progress_lines
from drill.training.device import device_name
from drill.training.loop import TRAINING_LOG, Outcome
from drill.training.progress import Progress
from drill.training.run.checkpoint import fingerprint_in, load, save, under
from tests.tiny_place import RECIPE, make_place

ON_A_CPU = ("train", "tiny.toml", "--device", "cpu")

NEVER_TRAINED = (
    "<unk> is nowhere in the training text, so the model has learnt nothing of it and what it "
    "costs means nothing; a larger data.minimum_count puts it there"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


def test_a_run_is_a_folder_of_plain_files(place):
    found = {path.name for path in (place / "runs" / "tiny").iterdir()}
    expected = {"recipe.toml", "vocabulary.json", "environment.json", "metrics.jsonl", "last"}
    assert found >= {*expected, "best.safetensors"}
    environment = json.loads((place / "runs/tiny/environment.json").read_text())
    assert environment["vocabulary_size"] == 7
    assert (environment["precision"], environment["tf32"]) == ("float32", False)
    assert environment["ways"] == [
        "LSTM PyTorch's own (on a CPU)",
        "labels reference (the labels are on cpu)",
        "loss reference (the logits take only 0.0 MiB)",
        "steps launched one by one: CUDA graphs need an NVIDIA GPU, not cpu",
    ]


def test_what_is_trained_is_said_in_short_lines_before_it_is(drill):
    brief = ("--set", "training.epochs=5", "--name", "said", "--set", "layer.dropout=0.1")
    code, _, err = drill(*ON_A_CPU, *brief)
    assert code == 0
    lines = err.splitlines()
    assert lines[:3] == [  # of eleven options the size and the one that is not the layer's default
        "training tiny in runs/said: deep-residual (depth 2, dropout 0.1)",
        f"  cpu ({device_name(torch.device('cpu'))}), float32",
        "  1,967 parameters, 151 of them the layer's own; text: 1,800 tokens, 7 words",
    ]
    assert lines[3].startswith("epoch 1/5")
    assert drill(*ON_A_CPU, *brief)[2].startswith("already trained: tiny in runs/said: ")
    assert drill(*ON_A_CPU, *brief, "-q")[2] == ""


def test_a_run_of_few_updates_says_so_before_it_is_trained(drill):
    few = ("--set", "training.epochs=1", "--name", "few")
    assert drill(*ON_A_CPU, *few)[2].splitlines()[3] == (
        "about 22 updates in all, too few to learn much: set a larger training.epochs (5 make "
        "about 100), a smaller training.batch_size or training.bptt"
    )
    assert "updates in all" not in drill(*ON_A_CPU, *few)[2]  # it is trained already
    one = (*few[:2], "--name", "one", "--set", "training.bptt=225")
    assert drill(*ON_A_CPU, *one)[2].splitlines()[3].startswith("about 1 update in all, too few")
    enough = ("--set", "training.epochs=5", "--name", "enough")
    assert "updates in all" not in drill(*ON_A_CPU, *enough)[2]


@pytest.mark.parametrize(("lr", "told"), [("100", True), ("5", False)])
def test_a_model_that_predicts_no_better_than_a_guess_says_so(drill, lr, told):
    words = ("--name", f"guess{lr}", "--set", f"optimizer.lr={lr}", "--set", "training.epochs=1")
    for _ in range(2):  # trained, and asked again
        code, out, err = drill(*ON_A_CPU, *words, "--set", "optimizer.clip=none")
        assert code == 0
        assert (float(out.split("test perplexity ")[1].split()[0].replace(",", "")) >= 7) is told
        assert (" is not below 7, that of a guess among all words: " in err) is told


def test_a_recipe_without_a_base_says_which_sizes_are_defaults(drill, place):
    own = RECIPE.replace("hidden_size = 12", "").replace("epochs = 2", "")
    own = own.replace("layers = 2", "layers = 1")  # of which none has that size: sooner trained
    (place / "bare.toml").write_text(own)
    (place / "upon.toml").write_text('base = "bare.toml"\n[training]\nepochs = 1\n')
    code, _, err = drill("train", "upon.toml", "--device", "cpu")
    assert code == 0
    assert err.splitlines()[3] == (
        "the recipe upon has no base, so these are drill's defaults: encoder.hidden_size 1150; set "
        'them, or start from a small recipe with base = "demo-drill" as its first line'
    )
    assert (
        "no base" not in drill("train", "upon.toml", "--device", "cpu")[2]
    )  # it goes on as it began


def test_words_under_the_cut_off_are_counted_before_training(drill, place):
    """Ten lines: the last is the test, the one before validation."""
    text = ["a a b b c"] * 8 + ["a b"] + ["a b c new"]
    (place / "rare.txt").write_text("\n".join(["odd " + text[0], *text[1:]]) + "\n")
    said = "of the training tokens, 20.0% of the test tokens; perplexities take it for one word"
    rare = (
        "<unk> stands for 1 word seen fewer than 3 times (data.minimum_count) and for words never "
        f"seen in training: 2.0% {said}"
    )
    small = ("--set", "training.batch_size=1", "--set", "training.valid_batch_size=1")
    own = ("--name", "rare", "--set", "data.corpus=rare.txt", "--set", "data.minimum_count=3")
    assert rare in drill(*ON_A_CPU, *own, *small)[2].splitlines()
    assert "<unk>" not in drill(*ON_A_CPU, *own, *small)[2]  # it is trained already
    going_on = drill(*ON_A_CPU, *own, *small, "--set", "training.epochs=3")[2].splitlines()
    assert going_on[0].startswith("going on with tiny in runs/rare")
    assert rare in going_on
    out = drill("data", "rare.txt", "--minimum-count", "3")[1].splitlines()
    assert out[1].startswith("counted with --minimum-count 3; ")
    assert out[2] == rare
    assert drill("data", "rare.txt")[1].splitlines()[2] == (
        f"<unk> stands for words never seen in training: 0.0% {said}"
    )


def test_the_same_command_again_says_the_same(drill):
    code, out, err = drill("train", "tiny.toml", "--device", "cpu")
    assert code == 0
    assert "runs/tiny: valid" in out
    assert "already trained: tiny" in err
    assert drill("train", "tiny.toml", "--device", "cpu", "-q")[1:] == (out, "")


def test_a_perplexity_beyond_all_numbers_is_printed(drill):
    wild = ("optimizer.lr=1e6", "optimizer.clip=none", "training.epochs=1")
    calm = ("training.activation=0", "training.slowness=0")
    changes = [word for change in (*wild, *calm) for word in ("--set", change)]
    for _ in range(2):  # trained, and told again from what was written
        code, out, err = drill(*ON_A_CPU, "--name", "wild", "-q", *changes)
        assert (code, err) == (0, "")
        said = "runs/wild: valid perplexity inf  test perplexity inf  (best of 1 epoch: 1; "
        assert out.startswith(said)


def test_a_folder_of_other_files_is_no_place_for_a_run(drill, place):
    folder = place / "runs" / "notes"
    folder.mkdir()
    (folder / "plan.txt").write_text("1. rest\n")
    (folder / "sub").mkdir()
    code, _, err = drill(*ON_A_CPU, "--name", "notes")
    assert code == 1
    assert err == (
        "drill: runs/notes: holds no run, but plan.txt and 1 more; give this one another --name, "
        "or empty the folder\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["plan.txt", "sub"]
    (folder / "recipe.toml").write_text("")  # as a run that was killed before it saved
    assert drill(*ON_A_CPU, "--name", "notes")[0] == 0


def test_a_run_that_ends_by_the_clock_is_a_run_like_others(drill, place):
    brief = (*ON_A_CPU, "--name", "brief", "--set")
    for _ in range(2):  # trained, and asked again
        code, out, err = drill(*brief, "training.max_minutes=1e-6")
        assert code == 0
        assert "(best of 1 epoch: 1; " in out
        assert err.splitlines()[-1] == (
            "ended by training.max_minutes in epoch 1 of 2; set a larger training.max_minutes to "
            "continue"
        )
    _, out, err = drill(*brief, "training.max_minutes=1e-6", "-q")
    assert (err, out.endswith(" in all, ended by training.max_minutes)\n")) == ("", True)
    assert "max_minutes = 1e-06" in (place / "runs/brief/recipe.toml").read_text()
    for words in (("report", "runs/brief", "-o", "brief.html"), ("evaluate", "runs/brief")):
        assert drill(*words)[0] == 0
    for limit in ("none", "60"):  # of an hour that its epochs did not need
        code, out, err = drill(*brief, f"training.max_minutes={limit}")
        assert "(best of 2 epochs: 2; " in out
        assert "ended by" not in err


def test_another_setting_needs_another_name(drill):
    code, _, err = drill("train", "tiny.toml", "--set", "layer.depth=3")
    assert code == 1
    assert "layer.depth: 2 -> 3" in err
    assert "--name" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["tiny.toml", "tiny.toml"], "twice/tiny"),
        (["tiny.toml", "--seed", "1", "--seed", "2", "--seed", "1"], "twice/tiny-seed-1"),
    ],
)
def test_two_runs_in_one_folder_are_refused_before_any_is_trained(drill, place, words, folder):
    code, out, err = drill("train", *words, "--runs", "twice", "--device", "cpu")
    assert (code, out) == (1, "")
    assert f"drill: {folder}: is asked for 2 times; name every recipe and seed once" in err
    assert not (place / "twice").exists()


def test_a_run_that_fails_does_not_keep_the_others_from_training(drill, place):
    (place / "lost.toml").write_text(RECIPE.replace('corpus = "text"', 'corpus = "lost"'))
    few = ("--set", "training.epochs=1", "--device", "cpu", "--runs", "some", "-q")
    code, out, err = drill("train", "lost.toml", "tiny.toml", *few)
    assert code == 1
    assert out.startswith("some/tiny: valid")
    assert err.splitlines()[0].startswith("drill: lost: is neither")
    assert err.splitlines()[-1] == "drill: 1 of 2 runs failed: some/lost"
    assert "Traceback" not in err


def test_a_rule_that_cannot_be_made_does_not_keep_the_others_from_training(drill, place):
    wrong = RECIPE.replace("lr = 5.0", 'name = "adamw"\nbeta1 = 1.5')
    (place / "wrong.toml").write_text(wrong)
    few = ("--set", "training.epochs=1", "--device", "cpu", "--runs", "rules", "-q")
    code, out, err = drill("train", "wrong.toml", "tiny.toml", *few)
    assert code == 1
    assert out.startswith("rules/tiny: valid")
    assert err.splitlines() == [
        "drill: [optimizer]: AdamW: beta1 lies in [0, 1), not 1.5",
        "drill: 1 of 2 runs failed: rules/wrong",
    ]


@pytest.mark.parametrize("quiet", [False, True])
def test_what_training_says_of_its_way_is_shown(drill, monkeypatch, quiet):
    def speaking(*arguments, **options):
        logging.getLogger(TRAINING_LOG).info("training on cuda: LSTM persistent")
        raise RunFolderError("no more")

    monkeypatch.setattr(importlib.import_module("drill.cli.train"), "train_run", speaking)
    _, out, err = drill("train", "tiny.toml", "--device", "cpu", *(["-q"] if quiet else []))
    assert out == ""
    assert ("training on cuda: LSTM persistent\n" in err) is not quiet
    assert not logging.getLogger(TRAINING_LOG).handlers


@pytest.mark.parametrize("finished", [False, True])
def test_ctrl_c_keeps_the_next_recipe_from_beginning(drill, monkeypatch, finished):
    """Be it so late that the run is whole."""
    begun = []

    def interrupted(settings, folder, **options):
        begun.append(folder.name)
        scores = Perplexity(100.0, 50, 1) if finished else None
        return Outcome(finished, 2, 1, scores, scores, 1.0, interrupted=True)

    monkeypatch.setattr(importlib.import_module("drill.cli.train"), "train_run", interrupted)
    code, out, _ = drill(*ON_A_CPU, "--seed", "1", "--seed", "2", "-q")
    assert (code, begun) == (130, ["tiny-seed-1"])
    assert ("runs/tiny-seed-1: valid perplexity 7.39  test perplexity 7.39" in out) is finished


def test_lines_come_soon_at_first_and_then_ever_more_seldom(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    told = {}
    with display.TrainingDisplay() as shown:
        shown.say("training")
        for now in range(1, 400):
            shown.show(Progress(1, 1, now / 400, now, 2.0, 100.0, 400.0 - now))
            if line := capsys.readouterr().err.replace("training\n", ""):
                told[now] = line
    assert [*told] == [5, 15, 35, 75, 135, 195, 255, 315, 375]
    assert told[5] == "epoch 1    1%  loss 2.000  perplexity 7.4  100 tokens/s  6:35 left\n"


def test_counting_tells_how_far_it_is_where_there_is_no_terminal(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for quiet, told in ((False, "data  2,000 of 9,000\n"), (True, "")):
        now = 0.0
        with display.Counter("data", quiet) as count:
            count(1000, 9000)
            now = 11.0
            count(2000, 9000)
            count(3000, None)
        assert capsys.readouterr().err == told


def test_the_display_shows_work_that_makes_no_updates(capsys, monkeypatch):
    monkeypatch.setattr(progress_lines, "FIRST_AFTER", 0.0)
    with display.TrainingDisplay() as shown:
        shown.show(Progress(3, 3, 0.25, 60, 1.5, 100.0, 0.0, work="test"))
    assert capsys.readouterr().err == "test  25%\n"


def test_several_seeds_and_recipes_in_one_go(drill, place):
    code, out, _ = drill(
        *("train", "tiny.toml", "--seed", "1", "--seed", "2", "--runs", "many", "-q"),
        *("--set", "training.epochs=1", "--device", "cpu"),
    )
    assert code == 0
    assert out.count("valid") == 2
    assert {path.name for path in (place / "many").iterdir()} == {"tiny-seed-1", "tiny-seed-2"}
    (place / "other.toml").write_text(RECIPE.replace("depth = 2", "depth = 1"))
    code, out, _ = drill(
        *("train", "tiny.toml", "other.toml", "--runs", "two", "-q", "--device", "cpu"),
        *("--set", "training.epochs=1"),
    )
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["two/tiny", "two/other"]
    assert 'recipe = "other"' in (place / "two/other/recipe.toml").read_text()
    code, _, err = drill("train", "tiny.toml", "ptb-tied", "--name", "x")
    assert (code, "2 are asked for" in err) == (1, True)


def test_finetuning_starts_from_the_best_weights(drill, place):
    code, out, _ = drill(
        *("finetune", "runs/tiny", "--set", "training.epochs=1", "--set", "optimizer.lr=0.001"),
        *("--device", "cpu"),
    )
    assert code == 0
    assert "runs/tiny-finetune: valid" in out
    rows = (place / "runs/tiny-finetune/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows[:2]] == [0, 1]


def test_finetuning_the_folder_one_is_in_writes_beside_it(drill, place, monkeypatch):
    monkeypatch.chdir(place / "runs" / "tiny")
    few = ("--set", "training.epochs=1", "--set", "optimizer.lr=0.001")
    code, _, err = drill("finetune", ".", *few, "--device", "cpu", "--name", "from-within")
    assert code == 0, err
    assert (place / "runs" / "from-within" / "best.safetensors").exists()
    code, out, _ = drill("finetune", ".", *few, "--device", "cpu")
    assert (code, f"{place / 'runs' / 'tiny-finetune'}: valid" in out) == (0, True)
    assert not list(Path().glob("*-finetune"))


def test_evaluate_prints_both_normalisations_and_keeps_them(drill, place):
    code, out, _ = drill("evaluate", "runs/tiny", "--json", "--device", "cpu")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["split"] for row in rows] == ["valid", "test"]
    assert all(row["published"] < row["perplexity"] for row in rows)
    metrics = [json.loads(r) for r in (place / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    assert rows[1]["perplexity"] == pytest.approx(metrics[-1]["test_perplexity"], rel=1e-6)
    kept = (place / "runs/tiny/evaluations.jsonl").read_text().splitlines()
    assert json.loads(kept[-1])["split"] == "test"


@pytest.mark.parametrize("kind", ["--dynamic", "--cache"])
def test_evaluate_searches_on_validation_only(drill, kind):
    limit = ("--limit", "60", "--every", "16") if kind == "--dynamic" else ()
    code, out, err = drill("evaluate", "runs/tiny", kind, "--search", *limit, "--device", "cpu")
    assert code == 0, err
    assert err.startswith("tuned on validation: ")
    assert len(out.splitlines()) == 2
    assert f"{kind[2:]} test" in out


def test_the_statistics_of_dynamic_evaluation_have_its_segments(drill, place):
    for every in (20, 5):
        words = ("--dynamic", "--every", str(every), "--split", "test", "--device", "cpu")
        assert drill("evaluate", "runs/tiny", *words)[0] == 0
        kept = Statistics.load(place / "runs/tiny/dynamic.safetensors")
        assert kept.text.endswith(f"in {every}s")
        assert kept.batches == -(-17 // every)  # 1,800 tokens in 100 columns


def test_a_short_training_text_is_read_in_fewer_columns(drill, place):
    """100 columns of 120 tokens would leave none a second row."""
    (place / "short").mkdir()
    for split in ("train", "valid", "test"):
        (place / "short" / f"{split}.txt").write_text("the lamp is lit again\n" * 20)
    small = ("--set", "data.corpus=short", "--set", "training.batch_size=4")
    assert drill(*ON_A_CPU, "--name", "short", *small)[0] == 0
    words = ("evaluate", "runs/short", "--dynamic", "--split", "test", "--json", "--device", "cpu")
    code, out, err = drill(*words)
    assert code == 0, err
    assert json.loads(out)["statistics_columns"] == 20
    assert err == (
        "the training text has 120 tokens, too few for 100 columns of 6: gradient statistics are "
        "gathered in 20 columns\n"
    )
    line = drill(*(word for word in words if word != "--json"))[1]
    assert line.endswith("epsilon 2e-05, every 5, gradient statistics of 20 columns]\n")


def test_a_stopped_search_says_that_it_goes_on(drill, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    module = importlib.import_module("drill.cli.evaluate_adaptive")
    monkeypatch.setattr(module, "dynamic_search", stopped)
    code, out, err = drill("evaluate", "runs/tiny", "--dynamic", "--search", "--device", "cpu")
    assert (code, out) == (130, "")
    assert err == "stopped; every setting that was tried is kept, the same command goes on\n"


def test_evaluate_records_the_precision_it_used(drill, place):
    """Autocast reaches the cache; the steps of dynamic evaluation are never taken in bfloat16."""
    shutil.copytree(place / "runs/tiny", place / "runs/coarse")
    path = place / "runs/coarse/recipe.toml"
    path.write_text(path.read_text().replace('precision = "tf32"', 'precision = "bfloat16"'))

    def row(kind: str, *words: str) -> dict:
        words = ("evaluate", "runs/coarse", kind, "--split", "test", "--json", *words)
        code, out, err = drill(*words, "--device", "cpu")
        assert code == 0, err
        return json.loads(out)

    coarse, exact = row("--cache"), row("--cache", "--precision", "float32")
    assert (coarse["precision"], exact["precision"]) == ("bfloat16", "float32")
    assert coarse["loss"] != exact["loss"]
    wide, exact = row("--dynamic"), row("--dynamic", "--precision", "float32")
    assert (wide["precision"], exact["precision"]) == ("float32", "float32")  # a CPU has no tf32
    assert wide["loss"] == exact["loss"]
    assert row("--cache", "--precision", "tf32")["precision"] == "float32"


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (("--dynamic", "--lr", "1e10"), "have run away; take a smaller --lr"),
        (("--cache", "--share", "1", "--window", "1"), "take a smaller --share"),
    ],
)
def test_an_infinite_perplexity_is_json_and_no_success(drill, place, words, mend):
    words = ("evaluate", "runs/tiny", *words, "--split", "test", "--device", "cpu")
    code, out, err = drill(*words, "--json")
    row = json.loads(out, parse_constant=pytest.fail)
    assert (code, row["perplexity"]) == (1, "inf")
    assert json.loads((place / "runs/tiny/evaluations.jsonl").read_text().splitlines()[-1]) == row
    (told,) = err.splitlines()
    assert told.startswith(f"drill: {row['kind']} test: the perplexity is infinite (a loss of ")
    assert mend in told
    code, out, _ = drill(*words)
    assert (code, "perplexity inf " in out) == (1, True)


def test_evaluate_says_in_words_what_was_counted_and_skipped(drill):
    words = ("evaluate", "runs/tiny", "--cache", "--split", "test", "--device", "cpu")
    _, out, _ = drill(*words)
    assert "  (as published numbers are counted: " in out
    assert out.endswith("  [window 500, theta 1.0, share 0.1]\n")
    _, out, _ = drill(*words, "--published", "--chunk", "30")
    assert out.endswith(", chunk 30, skipping what the released code skips]\n")


def test_the_published_cache_has_the_chunks_it_is_told(drill):
    def row(*words: str) -> dict:
        words = ("evaluate", "runs/tiny", "--cache", "--split", "test", "--json", *words)
        return json.loads(drill(*words, "--window", "20", "--device", "cpu")[1])

    assert row("--chunk", "30")["loss"] == pytest.approx(row()["loss"], rel=1e-6)
    published = row("--published", "--chunk", "30")
    assert published["chunk"] == 30
    assert published["loss"] != pytest.approx(row("--published")["loss"], rel=1e-6)


def test_the_published_cache_is_tuned_as_it_is_evaluated(drill, monkeypatch):
    module = importlib.import_module("drill.cli.evaluate_adaptive")
    search, found = module.cache_search, []

    def spy(*arguments, **options):
        found.append(search(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(module, "cache_search", spy)
    words = ("--cache", "--search", "--published", "--chunk", "30", "--window", "20")
    code, out, err = drill("evaluate", "runs/tiny", *words, "--split", "valid", "--json")
    assert code == 0, err
    assert json.loads(out)["loss"] == pytest.approx(found[0].best.result.loss, rel=1e-6)


def test_a_full_disk_does_not_take_an_evaluation_away(drill, place, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    held = place / "runs/tiny/evaluations.jsonl"
    drill("evaluate", "runs/tiny", "--split", "test", "--device", "cpu")
    before = held.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    code, out, err = drill("evaluate", "runs/tiny", "--split", "test", "--device", "cpu")
    assert code == 1
    assert out.startswith("plain test   perplexity ")
    assert err == (
        "drill: runs/tiny/evaluations.jsonl: cannot be written (No space left on device; 1 KiB are "
        "needed), so this result is not saved; free disk space and evaluate again\n"
    )
    assert held.read_bytes() == before
    words = ("--dynamic", "--every", "7", "--split", "test", "--device", "cpu")
    code, _, err = drill("evaluate", "runs/tiny", *words)
    assert code == 1
    assert err.startswith("drill: runs/tiny/dynamic.safetensors: cannot be written (No space left")
    assert " KiB are needed)" in err


@pytest.mark.parametrize("kind", ["dynamic", "cache"])
def test_a_search_reads_the_validation_text(drill, monkeypatch, kind):
    module = importlib.import_module("drill.cli.evaluate_adaptive")
    search, read = getattr(module, f"{kind}_search"), []

    def spy(model, ids, *arguments, **options):
        read.append(np.asarray(ids))
        return search(model, ids, *arguments, **options)

    monkeypatch.setattr(module, f"{kind}_search", spy)
    limit = ("--limit", "60", "--every", "20") if kind == "dynamic" else ()
    code, _, err = drill("evaluate", "runs/tiny", f"--{kind}", "--search", *limit)
    assert code == 0, err
    run = load_run("runs/tiny", device="cpu")
    assert [np.array_equal(ids, run.ids.valid) for ids in read] == [True]
    assert not np.array_equal(run.ids.valid, run.ids.test)


def test_the_defaults_of_dynamic_evaluation_are_the_published_ones():
    """lr 5e-5, lamb 0.002, epsilon 2e-5, steps of 5 tokens; statistics in 100 columns."""
    function = inspect.signature(dynamic_perplexity).parameters
    command = inspect.signature(importlib.import_module("drill.cli.evaluate").evaluate).parameters
    published = {"lr": 5e-5, "lamb": 0.002, "epsilon": 2e-5, "bptt": 5}
    names = {"lamb": "pull", "bptt": "every"}
    for name, value in published.items():
        assert function[name].default == value
        assert command[names.get(name, name)].default == value
    gathered = inspect.signature(gradient_statistics).parameters
    assert (gathered["batch_size"].default, gathered["bptt"].default) == (100, 5)


@pytest.mark.parametrize("kind", ["dynamic", "cache"])
def test_the_page_shows_every_option_beside_its_name_in_python(kind):
    module = importlib.import_module("drill.cli.evaluate")
    page = (Path(__file__).parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")
    head = f"| in Python | `drill evaluate --{kind}` |"
    rows = page.split(head)[1].split("\n\n")[0].splitlines()[2:]
    names = [[cell.strip(" `") for cell in row.split("|")[1:3]] for row in rows]
    options = module.OF_DYNAMIC if kind == "dynamic" else module.OF_CACHE
    assert [option for _, option in names] == [f"--{name}" for name in options]
    functions = {"dynamic": dynamic_perplexity, "cache": cache_perplexity}
    function = inspect.signature(functions[kind]).parameters
    assert {name.removesuffix("` of `dynamic_search") for name, _ in names} <= set(function)


def test_evaluate_tells_in_how_many_columns_a_text_was_read(drill):
    words = ("evaluate", "runs/tiny", "--device", "cpu")
    _, out, err = drill(*words)
    assert ["in 10 columns" in line for line in out.splitlines()] == [True, False]
    assert "in 1 column " in out.splitlines()[1]
    assert err == ""
    _, out, err = drill(*words, "--cache")
    assert [" in 1 column " in line for line in out.splitlines()] == [True, True]
    (told,) = err.splitlines()
    assert told.startswith(
        "valid: training and plain evaluation read it in 10 columns, this in one"
    )
    proposed = told.split("`drill ")[1].rstrip("`").split()
    assert " in 1 column " in drill(*proposed, "--device", "cpu")[1]
    assert drill(*words, "--cache", "--split", "test")[2] == ""


def test_evaluate_writes_the_loss_of_every_token(drill, place):
    code, out, _ = drill(
        *("evaluate", "runs/tiny", "--split", "test", "--losses", "l.npy", "--json"),
        *("--device", "cpu"),
    )
    losses = np.load(place / "l.npy")
    row = json.loads(out)
    assert (code, len(losses)) == (0, row["tokens"])
    assert losses.mean(dtype=np.float64) == pytest.approx(row["loss"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "nowhere"], "nowhere: holds no run"),
        (["evaluate", "runs/tiny", "--dynamic", "--cache"], "choose one of them"),
        (["evaluate", "runs/tiny", "--search"], "add one of them"),
        (["evaluate", "runs/tiny", "--lr", "1"], "--lr: says something about --dynamic"),
        (["evaluate", "runs/tiny", "--cache", "--batch-size", "2"], "--cache reads one column"),
        (
            ["evaluate", "runs/tiny", "--dynamic", "--search", "--lr", "0.5"],
            "--lr: is what --search looks for",
        ),
        (
            ["evaluate", "runs/tiny", "--dynamic", "--search", "--pull", "0.5"],
            "--pull: is what --search looks for",
        ),
        (
            ["evaluate", "runs/tiny", "--cache", "--search", "--theta", "0.5"],
            "--theta: is what --search looks for",
        ),
        (
            ["evaluate", "runs/tiny", "--cache", "--search", "--share", "0.5"],
            "--share: is what --search looks for",
        ),
        (["evaluate", "runs/tiny", "--dynamic", "--limit", "50"], "--limit: bounds what --search"),
        (["evaluate", "runs/tiny", "--chunk", "50"], "--chunk: says something about --cache"),
        (
            ["evaluate", "runs/tiny", "--dynamic", "--precision", "bfloat16"],
            "--precision bfloat16: is too coarse for the steps of --dynamic",
        ),
        (["report"], "name folders of runs"),
        (
            ["train", "tiny.toml", "--set", "training.epochs=2", "layer.depth=2"],
            "layer.depth=2: is no recipe but a change; give each change its own --set: --set "
            "layer.depth=2",
        ),
        (
            ["export", "runs/tiny", "out"],
            "runs/tiny: holds a language model; only translators can be exported",
        ),
        (["evaluate", "runs/tiny", "--losses", "x.npy"], "needs one --split"),
        (
            ["evaluate", "runs/tiny", "--cache", "--share", "7"],
            "drill: --share: lies in [0, 1], not 7.0",
        ),
        (
            ["evaluate", "runs/tiny", "--cache", "--theta", "nan"],
            "drill: --theta: is a finite number, not nan",
        ),
        *(
            (
                ["evaluate", "runs/tiny", "--dynamic", option, value],
                f"drill: {option}: is a finite number {bound}, not {float(value)}",
            )
            for option, value, bound in (
                ("--lr", "-1", "of at least 0"),
                ("--pull", "inf", "of at least 0"),
                ("--epsilon", "0", "above 0"),
            )
        ),
        (["evaluate", "runs/tiny", "--device", "tpu"], "device tpu: cannot be used here"),
        (
            ["evaluate", "runs/tiny", "--device", "gpu"],
            "choose cpu, cuda or mps; did you mean cuda?",
        ),
        (["generate", "runs/tiny", "--temperature", "nan"], "temperature"),
        (
            ["generate", "runs/tiny", "--prompt", "sea <eos>"],
            "generate: the prompt holds the word <eos>, which is kept for the end of a line; put a "
            "line break there",
        ),
        (["score", "runs/tiny", "--header", "--json"], "--header: names columns"),
        (["score", "runs/tiny", "missing.txt"], "missing.txt: cannot be read"),
        (["train", "ptb-tide"], "did you mean ptb-tied"),
        (["train", "tiny.toml", "--set", "layer.detph=1"], "did you mean depth?"),
        (
            ["train", "demo-tied", "--set", "layer.detph=3"],
            "is no setting of tied; did you mean depth of deep-residual? then set layer.name too",
        ),
        (["train", "tiny.toml", "--set", "data.corpus=gone", "--name", "g"], "gone: is neither"),
        (
            [*ON_A_CPU, "--name", "o", "--set", "optimizer.lr=-1"],
            "[optimizer]: NtAsgd: lr is a finite positive number, not -1.0",
        ),
        (
            [*ON_A_CPU, "--name", "h", "--set", "layer.activation=sin"],
            "drill: layer.activation: is one of sigmoid, relu, tanh, gelu, none, not 'sin'",
        ),
        (
            [*ON_A_CPU, "--name", "i", "--set", "encoder.impl=persistent"],
            "the recipe tiny: lstm: impl persistent does not run here: it needs an NVIDIA GPU",
        ),
        ([*ON_A_CPU, "--set", "layer.depth=1"], "runs/tiny: holds a run with other settings"),
        (["finetune", "nowhere"], "nowhere"),
        (["record", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (
            ["data", "gone"],
            "gone: is neither a corpus (ptb, wikitext-2, bible, multi30k, europarl, wmt14, "
            "numbers) nor a folder or file; check the path, or take a name that `drill data` lists",
        ),
    ],
)
def test_a_mistake_ends_in_one_sentence(drill, words, said):
    code, _, err = drill(*words)
    assert code == 1
    assert "Traceback" not in err
    *notes, last = err.strip().splitlines()
    assert last.startswith("drill: ")
    assert said in last
    if "encoder.impl=persistent" not in words:
        assert notes == []
    else:  # a model that does not run here: what was begun is said
        assert notes[0].startswith("training tiny in ")
        assert len(notes) == 2


def test_generate_streams_words_and_tells_of_strange_ones(drill):
    code, out, err = drill(
        "generate", "runs/tiny", "--prompt", "the boat", "--tokens", "12", "--seed", "3"
    )
    assert code == 0
    assert "read as <unk>: the" in err
    assert out.startswith("the boat ")
    assert set(out.split()[1:]) <= {"lamp", "boat", "sea", "is", "lit"}
    again = drill("generate", "runs/tiny", "--prompt", "the boat", "--tokens", "12", "--seed", "3")
    assert again[1] == out


def test_generate_begins_every_text_with_the_prompt_unless_told_not_to(drill):
    words = ("generate", "runs/tiny", "--prompt", "sea is ", "--samples", "2", "--seed", "3")
    _, out, _ = drill(*words, "--tokens", "4")
    texts = out.removesuffix("\n").split("\n\n")
    assert len(texts) == 2
    assert all(text.startswith("sea is") for text in texts)
    assert "\033" not in out
    _, bare, _ = drill(*words, "--tokens", "4", "--no-echo")
    assert bare == out.replace("sea is", "")
    assert not drill("generate", "runs/tiny", "--tokens", "3", "--seed", "1")[1].startswith(" ")


def test_score_reads_standard_input_and_files(drill, place):
    text = "lamp is lit\n\nsea sea unheard\n"
    code, out, _ = drill("score", "runs/tiny", "--json", "--words", stdin=text)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["tokens"] for row in rows] == [4, 1, 4]
    assert rows[2]["unknown"] == ["unheard"]
    assert sum(value for _, value in rows[0]["words"]) == pytest.approx(rows[0]["log_prob"])
    (place / "lines.txt").write_text(text)
    code, out, err = drill("score", "runs/tiny", "lines.txt")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == f"{NEVER_TRAINED}\nnot in the vocabulary, read as <unk>: unheard\n"
    assert float(out.splitlines()[0].split("\t")[0]) == pytest.approx(rows[0]["log_prob"], abs=1e-3)
    _, named, _ = drill("score", "runs/tiny", "lines.txt", "--header")
    assert named == f"log p\ttokens\tunknown\tperplexity\ttext\n{out}"
    assert [line.split("\t")[2] for line in out.splitlines()] == ["0", "0", "1"]
    for raw, fault in ((b"lamp\n\xff\xfe\n", "is not UTF-8"), (b"lamp\nis\0lit\n", "holds NUL")):
        (place / "bad.txt").write_bytes(raw)
        code, _, err = drill("score", "runs/tiny", "bad.txt")
        assert (code, f"bad.txt: line 2 {fault}" in err) == (1, True)


def test_score_reads_a_dash_and_packed_files_and_leaves_a_byte_order_mark_out(drill, place):
    raw = b"\xef\xbb\xbflamp is\r\nlit\n"
    plain = drill("score", "runs/tiny", stdin="lamp is\nlit\n")
    assert plain[2] == ""
    assert drill("score", "runs/tiny", "-", stdin=raw) == plain
    (place / "lines.gz").write_bytes(gzip.compress(raw, mtime=0))
    assert drill("score", "runs/tiny", "lines.gz") == plain


def test_score_counts_what_the_line_calls_unknown_but_names_no_word_for_it(drill):
    _, out, err = drill("score", "runs/tiny", stdin="lamp <unk> lit\n")
    assert (out.split("\t")[2], err) == ("1", f"{NEVER_TRAINED}\n")
    _, out, _ = drill("score", "runs/tiny", "--json", stdin="lamp <unk> whale\n")
    assert json.loads(out)["unknown"] == ["<unk>", "whale"]


def test_a_model_that_has_seen_unk_is_not_said_to_have_not(drill, place):
    shutil.copytree(place / "runs/tiny", place / "runs/seen")
    path = place / "runs/seen/vocabulary.json"
    held = json.loads(path.read_text())
    held["counts"][held["words"].index("<unk>")] = 3
    path.write_text(json.dumps(held))
    said = "not in the vocabulary, read as <unk>: whale\n"
    assert drill("score", "runs/seen", stdin="whale\n")[2] == said
    words = ("--prompt", "whale", "--tokens", "1")
    assert drill("generate", "runs/seen", *words)[2] == said
    assert drill("generate", "runs/tiny", *words)[2] == f"{said}{NEVER_TRAINED}\n"


def test_score_puts_words_below_their_line_in_its_columns(drill):
    _, out, _ = drill("score", "runs/tiny", "--words", "--header", stdin="lamp is\nlit\n")
    names, *rows = (line.split("\t") for line in out.splitlines())
    rows = [dict(zip(names, row, strict=True)) for row in rows]
    assert [row["text"] for row in rows] == [
        "lamp is",
        "lamp",
        "is",
        "<eos>",
        "lit",
        "lit",
        "<eos>",
    ]
    assert [row["tokens"] for row in rows] == ["3", "", "", "", "2", "", ""]
    words = sum(float(row["log p"]) for row in rows[1:4])
    assert words == pytest.approx(float(rows[0]["log p"]), abs=1e-3)


def test_a_line_without_probability_is_json_and_no_success(drill, place):
    shutil.copytree(place / "runs/tiny", place / "runs/never")
    path = place / "runs/never/best.safetensors"
    tensors, numbers = load(path)
    words = json.loads((place / "runs/never/vocabulary.json").read_text())["words"]
    tensors["layer.bias"][words.index("boat")] = -torch.inf
    save(path, tensors, numbers)
    text = "lamp\nsea boat\nboat\n"
    code, out, err = drill("score", "runs/never", "--json", "--words", stdin=text)
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert (code, [row["perplexity"] for row in rows[1:]]) == (1, ["inf", "inf"])
    assert rows[1]["words"][1] == ["boat", "-inf"]
    assert err.splitlines() == [
        "drill: standard input: line 2: the perplexity is infinite: the weights give a word of the "
        "text no probability; evaluate others, or train anew"
    ]
    assert drill("score", "runs/never", stdin=text)[0] == 1
    assert drill("score", "runs/never", stdin="lamp\n")[0] == 0


def test_a_text_without_a_line_is_refused(drill, place):
    (place / "empty.txt").write_bytes(b"")
    for words, name in (
        (["empty.txt"], "empty.txt"),
        ([], "standard input"),
        (["--json"], "standard input"),
        (["--header"], "standard input"),
    ):
        code, out, err = drill("score", "runs/tiny", *words, stdin="")
        assert (code, out) == (1, "")
        assert err == f"drill: {name}: holds no line to score; give one sentence a line\n"
    code, out, _ = drill("score", "runs/tiny", stdin="\n")  # an empty line is one
    assert (code, out.split("\t")[1]) == (0, "1")


def test_score_prints_what_the_function_gives(drill, place):
    _, out, _ = drill("score", "runs/tiny", "--json", "--device", "cpu", stdin="lamp is lit\n")
    run = load_run(place / "runs/tiny", device="cpu")
    (truth,) = score(run.model, run.vocabulary, ["lamp is lit"])
    assert json.loads(out)["log_prob"] == pytest.approx(truth.log_prob, rel=1e-6)


def test_score_names_each_unknown_word_once_and_not_too_many(drill):
    strange = [f"word{i}" for i in range(23)]
    text = f"{' '.join(strange)} lamp\nword0 boat\n"
    _, _, err = drill("score", "runs/tiny", stdin=text)
    assert err == (
        f"{NEVER_TRAINED}\n"
        f"not in the vocabulary, read as <unk>: {' '.join(strange[:20])} and 3 more; --json has "
        "those of every line\n"
    )
    assert drill("score", "runs/tiny", "--json", stdin=text)[2] == f"{NEVER_TRAINED}\n"


def test_where_lines_begin_is_kept_with_the_run(drill, place, monkeypatch):
    words = ("generate", "runs/tiny", "--tokens", "8", "--seed", "1", "--device", "cpu")
    file = place / "runs/tiny/line_start.safetensors"
    file.unlink(missing_ok=True)
    text, scores = drill(*words)[1], drill("score", "runs/tiny", stdin="the sea\n")[1]
    assert file.is_file()
    monkeypatch.setattr(
        "drill.language_modeling.kept_start.line_start", None
    )  # nobody asks for it now
    assert drill(*words)[:2] == (0, text)
    assert drill("score", "runs/tiny", stdin="the sea\n")[:2] == (0, scores)


def test_report_and_record(drill, place):
    code, out, _ = drill("report", "runs/tiny", "-o", "r.html", "--bands", "--samples", "2")
    assert (code, out) == (0, "wrote r.html\n")
    page = (place / "r.html").read_text()
    assert drill("report", "runs/tiny", "-o", "r.html")[1] == "replaced r.html\n"
    assert page.count("Without &lt;eos&gt; and &lt;unk&gt;") == 1
    assert "Rare and frequent words" in page
    assert "Samples" in page
    code, out, _ = drill("report", "runs/tiny", "--markdown")
    assert (code, "| tiny | deep-residual 2 |" in out) == (0, True)
    assert drill("record", "runs/tiny", "--ledger", "l.jsonl")[0] == 0
    code, _, err = drill("record", "runs/tiny", "--ledger", "l.jsonl")
    assert (code, "is already in l.jsonl" in err) == (1, True)


def test_only_pages_of_drill_are_replaced(drill, place):
    assert drill("report", "runs/tiny")[:2] == (0, "wrote report.html\n")
    assert drill("report", "runs/tiny")[:2] == (0, "replaced report.html\n")
    page = place / "report.html"
    page.write_text("<p>mine</p>")
    code, _, err = drill("report", "runs/tiny", "-o", "report.html")
    assert (code, err.startswith("drill: report.html: ")) == (1, True)
    assert page.read_text() == "<p>mine</p>"
    for words in (["runs/nope"], ["--ledger", "nope"]):  # reported first, whatever the page is
        code, _, err = drill("report", *words)
        assert (code, err.split(":")[1]) == (1, f" {words[-1]}")
    page.unlink()


def test_record_writes_beside_the_run_and_into_no_tracked_file(drill, place, monkeypatch):
    results = place / "results/runs.jsonl"  # a clone of drill has one
    results.parent.mkdir()
    results.write_text("")
    code, out, _ = drill("record", "runs/tiny")
    assert (code, out.startswith("runs/ledger.jsonl: tiny, valid perplexity ")) == (0, True)
    assert ", test perplexity " in out
    assert results.read_text() == ""
    assert (place / "runs/ledger.jsonl").read_text().startswith('{"kind": "result"')
    code, _, err = drill("report", "runs/tiny", "runs/ledger.jsonl", "--markdown")
    left_out = (
        "runs/ledger.jsonl: holds no run, so it is left out; --ledger runs/ledger.jsonl reads"
    )
    assert (code, err) == (0, f"{left_out} it\n")
    monkeypatch.chdir(place / "runs/tiny")
    assert drill("record", ".")[::2] == (
        1,
        "drill: .: is already in ../ledger.jsonl, line 1; use --force to record it again\n",
    )


def test_bands_hold_words_and_each_text_has_its_own(drill, place):
    """`odd` is under the cut-off: of 40 lines of the test every fourth holds it."""
    (place / "odd").mkdir()
    for split, lines in {"train": 300, "valid": 40, "test": 40}.items():
        held = [
            f"the sea {'odd' if split == 'test' and n % 4 == 0 else 'is'} lit" for n in range(lines)
        ]
        (place / "odd" / f"{split}.txt").write_text("\n".join(held) + "\n")
    own = ("--set", "data.corpus=odd", "--set", "training.epochs=1", "--set", "optimizer.lr=")
    for name, lr in (("odd-1", 5.0), ("odd-2", 1.0)):
        assert drill(*ON_A_CPU, "--name", name, *own[:-1], f"{own[-1]}{lr}")[0] == 0
    found = Compared()
    for name in ("tiny", "odd-1", "odd-2"):
        found.add(name, load_run(f"runs/{name}", device="cpu"))
    tiny, odd = found.texts()
    assert (tiny.models, odd.models) == (["tiny"], ["odd-1", "odd-2"])
    assert odd.left_out == ("<eos>", "<unk>")
    assert sum(band.tokens for band in odd.losses["odd-1"]) == 150 - 20  # columns predict no first
    assert list(odd.changes) == ["odd-2"]
    assert (
        drill("report", "runs/tiny", "runs/odd-1", "runs/odd-2", "--bands", "-o", "t.html")[0] == 0
    )
    section = (place / "t.html").read_text().split('<section id="bands"')[1]
    assert "<h3>text: tiny</h3>" in section
    assert "<h3>odd: odd-1, odd-2</h3>" in section


def test_evaluations_stay_with_the_weights_they_are_of(drill, place):
    """Also where the run is trained on."""
    shutil.copytree(place / "runs/tiny", place / "runs/longer")
    held = place / "runs/longer/evaluations.jsonl"
    held.unlink(missing_ok=True)
    words = ("evaluate", "runs/longer", "--cache", "--split", "test", "--device", "cpu")

    def reported() -> tuple[bool, str]:
        out = drill("report", "runs/longer", "--markdown")[1]
        return "Dynamic evaluation and cache" in out, out

    drill(*words)
    row = json.loads(held.read_text())
    assert (row["weights"], row["weights_epoch"]) == ("best", 2)
    assert reported()[0]
    assert drill("record", "runs/longer", "--ledger", "w.jsonl")[::2] == (0, "")
    more = ("--name", "longer", "--set", "training.epochs=6")
    assert drill(*ON_A_CPU, *more)[0] == 0
    metrics = (place / "runs/longer/metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["epoch"] > 2  # better weights
    shown, page = reported()
    assert not shown
    assert "line 1 is left out, since other weights were evaluated (best of epoch 2)" in page
    code, _, err = drill("record", "runs/longer", "--ledger", "w.jsonl")
    assert (code, "best of epoch 2" in err) == (0, True)
    ledger = [json.loads(line) for line in (place / "w.jsonl").read_text().splitlines()]
    assert [len(each["evaluations"]) for each in ledger] == [1, 0]
    drill(*words)
    assert reported()[0]


def test_an_evaluation_of_the_last_weights_is_not_the_runs(drill, place):
    folder = place / "runs/moved"
    shutil.copytree(place / "runs/tiny", folder)
    (folder / "evaluations.jsonl").unlink(missing_ok=True)
    tensors, numbers = load(folder / "last/checkpoint.safetensors")
    tensors["model/layer.bias"] += 1.0
    save(folder / "last/checkpoint.safetensors", tensors, numbers)
    words = ("evaluate", "runs/moved", "--cache", "--split", "test", "--device", "cpu")
    drill(*words, "--weights", "last")
    row = json.loads((folder / "evaluations.jsonl").read_text())
    assert (row["weights"], row["weights_step"]) == ("last", numbers["step"])
    out = drill("report", "runs/moved", "--markdown")[1]
    assert "Dynamic evaluation and cache" not in out
    assert f"other weights were evaluated (last of step {numbers['step']})" in out


def test_equal_weights_have_equal_fingerprints_wherever_they_lie(drill, place):
    folder = place / "runs/equal"
    shutil.copytree(place / "runs/tiny", folder)
    tensors, _ = load(folder / "last/checkpoint.safetensors")
    save(folder / "best.safetensors", under("model/", tensors), {"epoch": 2})
    best, last = (load_run(folder, which, "cpu").origin for which in ("best", "last"))
    assert best.fingerprint == last.fingerprint == fingerprint_in(folder / "best.safetensors")
    assert (best.when, list(last.when)) == ({"epoch": 2}, ["step"])


def test_data_counts_a_corpus(drill):
    code, out, _ = drill("data", "text")
    assert code == 0
    assert out.splitlines() == [
        "text: 7 words; tokens train 1,800  valid 240  test 240",
        "counted with --minimum-count 1; `drill train` takes the recipe's data.minimum_count, 3 in "
        "demo-drill",
    ]
    assert "ptb" in drill("data")[1]


def test_recipes_lists_every_one(drill):
    code, out, _ = drill("recipes")
    assert code == 0
    lines = out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(named) == recipe_names()
    assert [line for line in lines if len(line) > 80] == []
    assert (
        lines[0] == "bible: language models; a CPU is enough"
    )  # what anybody can train comes first
    at = lines.index("  mt-demo-tied                  English-German numbers and dates, generated:")
    assert lines[at + 2].startswith("                                tied, 12 epochs")


def test_recipes_tells_what_helps_to_choose_one(drill):
    code, out, _ = drill("recipes", "--json")
    assert code == 0
    found = {each["name"]: each for each in json.loads(out)}
    assert [*found] == recipe_names()
    deep = found["ptb-drill-4"]
    assert deep.pop("about").startswith("4 label maps")
    timed = deep.pop("measured")
    assert deep == {
        "name": "ptb-drill-4",
        "task": "language-model",
        "corpus": "ptb",
        "layer": "deep-residual 4",
        "device": "cuda",
        "epochs": 1000,
        "updates": None,
        "max_minutes": None,
    }
    assert (timed["epochs"], timed["device"]) == (1, "NVIDIA H200")
    assert "; an epoch took\n" in drill("recipes")[1]
    assert f" {timed['seconds']:.1f} s on NVIDIA H200\n" in drill("recipes")[1]
    assert found["mt-demo"]["device"] == "cpu"
    assert found["wmt14-drill"]["updates"] == 350_000  # of its 1,000 epochs a few are reached
    assert "deep-residual 2, 350,000 updates" in drill("recipes")[1]
    assert found["ptb-mos"]["measured"] is None  # nobody has measured it
    assert found["ptb-fast-drill-4"]["max_minutes"] == 5.0
    assert "deep-residual 4, 5 minutes" in drill("recipes")[1]
    assert found["ptb-mos-drill"]["layer"] == "mixture 15 x deep-residual 4"


def test_a_user_without_a_home_evaluates_and_is_told_once(drill, request, caplog):
    words = ("evaluate", "runs/tiny", "--device", "cpu", "-q", "--json")
    wanted = [json.loads(line)["loss"] for line in drill(*words)[1].splitlines()]
    request.getfixturevalue("homeless")
    code, out, err = drill(*words)
    assert code == 0, err
    assert [json.loads(line)["loss"] for line in out.splitlines()] == wanted
    (said,) = caplog.messages
    assert "cannot be cached there (this user has no home), so every start makes them again" in said


@pytest.fixture
def tiny_demo(place, monkeypatch):
    """The module of the command, on the tiny text: what it trains is the recipes' affair."""
    demo = importlib.import_module("drill.cli.demo")
    for name in demo.RECIPES:
        layer = "tied" if name.endswith("tied") else "deep-residual"
        (place / f"{name}.toml").write_text(
            RECIPE.replace("deep-residual", layer).replace("depth = 2\n", "")
        )
    recipes = tuple(f"{name}.toml" for name in demo.RECIPES)
    monkeypatch.setattr(demo, "RECIPES", recipes)
    monkeypatch.setattr(demo, "PROMPTS", ("lamp", "sea"))
    return demo


def test_a_demo_that_is_interrupted_in_a_test_trains_no_other_model(
    drill, place, tiny_demo, monkeypatch
):
    """The test came to its end all the same, so the run is whole."""
    real, trained = tiny_demo.train_run, []

    def interrupted(settings, folder, **options):
        trained.append(folder.name)
        return replace(real(settings, folder, **options), interrupted=True)

    monkeypatch.setattr(tiny_demo, "train_run", interrupted)
    code, _, err = drill("demo", "--runs", "stopped", "-o", "stopped.html", "--epochs", "1")
    assert (code, trained) == (130, [tiny_demo.RECIPES[0]])
    assert "stopped; all is saved, the same command goes on" in err
    assert not (place / "stopped.html").exists()


def test_the_demo_compares_two_runs(drill, place, tiny_demo):
    code, out, err = drill("demo", "--runs", "demo", "-o", "demo.html", "--epochs", "1")
    assert code == 0, err
    assert err.startswith("training demo-tied in demo/demo-tied.toml: tied\n")
    assert "perplexity, all tokens" in out
    assert "loss without <eos> and <unk> (" in out
    assert "one epoch, one seed.\nLoss is in nats per token" in out
    (band,) = (line.split() for line in out.splitlines() if "seen 250 to 999 times" in line)
    tied = load_run("demo/demo-tied.toml", device="cpu")
    compared = Compared(tiny_demo.EDGES)
    compared.add("tied", tied)
    (text,) = compared.texts()
    assert band[-3] == f"{text.losses['tied'][4].mean_loss:.3f}"
    deep = load_run("demo/demo-drill.toml", device="cpu")
    compared.add("deep", deep)
    (text,) = compared.texts()
    first, second = (text.losses[each][4].mean_loss for each in ("tied", "deep"))
    assert band[-1] == numbers.change(second - first, 3)  # in nats, as papers compare losses
    for line in out.splitlines():
        if line.startswith(("perplexity, all", "parameters ")):
            assert line.endswith("%")
    assert "a small text needs --set training.epochs=20\n" in out
    assert "Rare and frequent words" in (place / "demo.html").read_text()
    assert str(Path("demo.html")) in out
    again = drill("demo", "--runs", "demo", "-o", "demo.html", "--epochs", "1")[2]
    assert again.count("already trained: ") == 2
    assert "training demo" not in again
    proposed = [line for line in out.splitlines() if " drill " in f"{line} "]
    assert len(proposed) == 4
    for line in proposed:
        words = shlex.split(line)
        code, _, err = drill(*words[words.index("drill") + 1 :])
        assert code == 0, err


def test_a_run_is_used_from_every_folder(drill, place, tmp_path, monkeypatch):
    run = str(place / "runs" / "tiny")
    _, here, _ = drill("evaluate", run, "--split", "test", "--json")
    monkeypatch.chdir(tmp_path)
    code, there, err = drill("evaluate", run, "--split", "test", "--json")
    assert (code, err) == (0, "")
    assert json.loads(there)["loss"] == json.loads(here)["loss"]
    for _ in range(2):  # the second time goes on with the first
        few = ("--set", "training.epochs=1", "--set", "optimizer.lr=0.001")
        code, _, err = drill("finetune", run, "--name", "afar", *few, "--device", "cpu")
        assert code == 0, err


def test_a_text_that_is_gone_is_named(drill, place):
    (place / "text").rename(place / "elsewhere")
    try:
        code, _, err = drill("evaluate", "runs/tiny")
    finally:
        (place / "elsewhere").rename(place / "text")
    assert code == 1
    assert f"runs/tiny: the text it was trained on is gone from {place / 'text'}; put it" in err


@pytest.mark.parametrize(
    "words",
    [
        "layers", "layers --json", "recipes", "data", "data text", "--help", "train --help",
        "--version", "evaluate runs/tiny", "evaluate runs/tiny --json", "generate runs/tiny",
        "score runs/tiny text/test.txt", "score runs/tiny text/test.txt --json",
        "report runs/tiny --markdown", "train tiny.toml --device cpu",
    ],
)  # fmt: skip
def test_a_closed_pipe_ends_without_a_word(drill, monkeypatch, words):
    code, out, told = drill(*words.split())
    assert (code, bool(out)) == (0, True)  # there is something to write
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", os.fdopen(writer, "w"))
        code, _, err = drill(*words.split())
        sys.stdout.close()
    assert code == 141
    assert err == told  # what is told beside it comes as ever, and no more


def test_what_is_read_before_a_pipe_is_closed_was_written(drill, monkeypatch):
    """As of `drill recipes | head -n 1`: the rest finds nobody, and nothing is said about it."""
    reader, writer = os.pipe()
    read = []

    def app() -> None:
        print("the first", flush=True)
        read.append(os.read(reader, 100))
        os.close(reader)
        print("the second")

    monkeypatch.setattr("drill.cli.app.app", app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", os.fdopen(writer, "w"))
        code, _, err = drill()
        sys.stdout.close()
    assert read == [b"the first\n"]
    assert (code, err) == (141, "")


def test_a_report_of_all_in_a_folder_leaves_out_what_is_no_run(tmp_path, capsys):
    run, page, remains = tmp_path / "run", tmp_path / "demo.html", tmp_path / "remains"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    page.write_text("<html>")
    remains.mkdir()
    reports = importlib.import_module("drill.cli.report")
    assert reports._without_others([page, run, remains]) == [run]
    told = capsys.readouterr().err
    assert f"{page}: holds no run, so it is left out" in told.replace("\n", " ")
    with pytest.raises(RunError, match=r"demo.html: is no folder; name a run folder"):
        reports._without_others([page])
    ledger = tmp_path / "results.jsonl"
    ledger.write_text("")
    with pytest.raises(SettingsError, match=r"results.jsonl: is no folder of a run; --ledger .*"):
        reports._without_others([page, ledger])
