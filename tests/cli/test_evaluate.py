"""`drill evaluate`, `drill dynamic` and `drill cache` of language models."""

import gzip
import hashlib
import inspect
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from drill.cli.evaluation import evaluate
from drill.language_modeling.evaluation import cache_pointer, dynamic_evaluation
from drill.language_modeling.evaluation.cache_pointer import cache_perplexity
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity
from drill.language_modeling.evaluation.gradient_statistics import gradient_statistics
from drill.language_modeling.run import load_language_model
from drill.training.run.folder import RunFolder
from tests.helpers.files import disk_full
from tests.helpers.workspaces import run_cli_in

CPU = ("--device", "cpu")
TEST = ("runs/tiny", "--split", "test", *CPU)
TEXT = b"lamp is lit\nboat boat storm sea\nis lit\n" * 20  # 9 words, 3 ends; the storm is new


@pytest.fixture
def run_cli(workspace, monkeypatch, capfd):
    (workspace / "test").write_bytes(TEXT)  # a file with the name of a split
    return run_cli_in(workspace, monkeypatch, capfd)


@pytest.fixture
def rows(cli_output):
    """The rows that a command prints with --json."""

    def run(*words: str) -> list[dict]:
        out = cli_output(*words, "--json")
        return [json.loads(line) for line in out.splitlines()]

    return run


def saved(workspace: Path, run: str = "tiny") -> list[dict]:
    lines = (workspace / "runs" / run / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# -- plain -----------------------------------------------------------------------------------------


def test_evaluate_prints_both_normalisations_and_saves_them(rows, workspace):
    valid, test = rows("evaluate", "runs/tiny", *CPU)
    assert (valid["split"], test["split"]) == ("valid", "test")
    assert all(row["perplexity_all_tokens"] < row["perplexity"] for row in (valid, test))
    tested = RunFolder(workspace / "runs/tiny").test_row()
    assert test["perplexity"] == pytest.approx(tested["test_perplexity"], rel=1e-6)
    assert saved(workspace)[-2:] == [valid, test]


def test_a_full_disk_loses_no_result(run_cli, cli_error, workspace, monkeypatch):
    path = workspace / "runs/tiny/evaluations.jsonl"
    run_cli("evaluate", *TEST)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", disk_full)
    code, out, err = run_cli("evaluate", "runs/tiny")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (1, ["valid:", "test:"])
    assert "drill: runs/tiny/evaluations.jsonl: " in err
    assert path.read_bytes() == before
    cli_error("dynamic", *TEST, "--segment-length", "7", key="runs/tiny/dynamic.safetensors: ")


# -- dynamic and cache -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "cache"])
def test_a_search_reads_the_validation_text_only(run_cli, calls_of, kind):
    module = {"dynamic": dynamic_evaluation, "cache": cache_pointer}[kind]
    searches = calls_of(module, f"{kind}_search")
    limit = ("--limit", "60", "--segment-length", "20") if kind == "dynamic" else ()
    code, out, err = run_cli(kind, "runs/tiny", "--search", *limit, *CPU)
    assert code == 0, err
    assert "tuned on validation: " in err
    starts = [line.split(" perplexity ")[0] for line in out.splitlines()]
    assert starts == [f"{kind}, valid:", f"{kind}, test:"]
    run = load_language_model("runs/tiny", device="cpu")
    assert [np.array_equal(call.arguments[1], run.ids.valid) for call in searches] == [True]


@pytest.mark.parametrize(
    ("kind", "option", "value", "search"),
    [
        ("dynamic", "--lr", "9", ["--search"]),
        ("dynamic", "--decay", "0.1", ["--search"]),
        ("dynamic", "--limit", "100", []),
        ("cache", "--lambda", "0.2", ["--search"]),
    ],
)
def test_options_that_nothing_would_read_are_errors(cli_error, kind, option, value, search):
    cli_error(kind, "runs/tiny", option, value, *search, *CPU, key=f"drill: {option}: ")


def test_a_short_training_text_is_read_at_a_smaller_batch_size(run_cli, workspace):
    """100 sequences of 120 tokens would leave none a second token."""
    (workspace / "short").mkdir()
    for split in ("train", "valid", "test"):
        (workspace / "short" / f"{split}.txt").write_text("the lamp is lit again\n" * 20)
    small = ("--set", "data.corpus=short", "--set", "training.batch_size=4")
    assert run_cli("train", "tiny.toml", "--name", "short", *small, *CPU)[0] == 0
    code, out, err = run_cli("dynamic", "runs/short", "--split", "test", "--json", *CPU)
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert (row["statistics_batch_size"], row["eps"]) == (20, 2e-5)


def test_the_precision_used_is_saved(rows, workspace):
    """Autocast reaches the cache; dynamic evaluation never runs in bfloat16."""
    shutil.copytree(workspace / "runs/tiny", workspace / "runs/coarse")
    path = workspace / "runs/coarse/recipe.toml"
    path.write_text(path.read_text().replace('precision = "tf32"', 'precision = "bfloat16"'))
    test = ("runs/coarse", "--split", "test", *CPU)
    (coarse,), (exact,) = rows("cache", *test), rows("cache", *test, "--precision", "float32")
    assert (coarse["precision"], exact["precision"]) == ("bfloat16", "float32")
    assert coarse["loss"] != exact["loss"]
    (wide,), (exact,) = rows("dynamic", *test), rows("dynamic", *test, "--precision", "float32")
    assert (wide["precision"], exact["precision"]) == ("float32", "float32")  # a CPU has no tf32
    assert wide["loss"] == exact["loss"]
    assert rows("cache", *test, "--precision", "tf32")[0]["precision"] == "float32"


@pytest.mark.parametrize(
    "words", [("dynamic", "--lr", "1e10"), ("cache", "--lambda", "1", "--window", "1")]
)
def test_an_infinite_perplexity_is_a_result(cli_output, workspace, words):
    words = (words[0], *TEST, *words[1:])
    row = json.loads(cli_output(*words, "--json"), parse_constant=pytest.fail)
    assert row["perplexity"] == "inf"
    assert saved(workspace)[-1] == row
    assert "perplexity inf " in cli_output(*words)


def test_the_defaults_are_the_published_ones():
    """Dynamic evaluation: lr 5e-5, decay 0.002, epsilon 2e-5, segments of 5, batch size 100."""
    published = {"lr": 5e-5, "decay": 0.002, "eps": 2e-5, "segment_length": 5}
    function, command = map(_parameters, (dynamic_perplexity, evaluate.dynamic))
    for name, value in published.items():
        assert function[name].default == command[name].default == value
    gathered = _parameters(gradient_statistics)
    assert (gathered["batch_size"].default, gathered["segment_length"].default) == (100, 5)
    function, command = map(_parameters, (cache_perplexity, evaluate.cache))
    for name in ("window", "theta", "lambda_"):
        assert function[name].default == command[name].default


def _parameters(call):
    return inspect.signature(call).parameters


# -- texts that are no split -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["evaluate", "cache", "dynamic"])
def test_a_text_equal_to_the_test_split_has_its_loss(rows, kind):
    (split,) = rows(kind, *TEST)
    (own,) = rows(kind, "runs/tiny", "--text", "text/test.txt", *CPU)
    assert (own["kind"], own["split"], own["text"]) == (split["kind"], "files", "text/test.txt")
    assert own["loss"] == split["loss"]
    assert (own["tokens"], own["unknown"]) == (split["tokens"], 0)


def test_the_row_of_a_text_names_the_file_and_counts_unknown_words(run_cli, rows, workspace):
    (row,) = rows("evaluate", "runs/tiny", "--text", "test", *CPU)
    assert row["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert (row["unknown"], row["tokens"]) == (20, 239)
    assert saved(workspace)[-1] == row
    _, out, _ = run_cli("evaluate", "runs/tiny", "--text", "test", "--bands", *CPU)
    assert out.startswith("test: perplexity ")
    assert re.search(r"^training count +types +tokens +loss$", out, re.MULTILINE)
    assert "Without <eos> and <unk>," in out
    assert "239 tokens (20 of them <unk>)" in out


def test_a_text_may_be_packed_and_needs_no_corpus(rows, workspace):
    (plain,) = rows("evaluate", "runs/tiny", "--text", "test", *CPU)
    (workspace / "packed").write_bytes(gzip.compress(TEXT))
    shutil.move(workspace / "text", workspace / "elsewhere")
    try:
        (packed,) = rows("evaluate", "runs/tiny", "--text", "packed", *CPU)
    finally:
        shutil.move(workspace / "elsewhere", workspace / "text")
    assert packed["loss"] == plain["loss"]


# -- which weights ---------------------------------------------------------------------------------


def test_evaluations_belong_to_the_weights_they_are_of(run_cli, workspace):
    """Also where the run is trained further."""
    shutil.copytree(workspace / "runs/tiny", workspace / "runs/longer")
    path = workspace / "runs/longer/evaluations.jsonl"
    path.unlink(missing_ok=True)
    words = ("cache", "runs/longer", "--split", "test", *CPU)

    def reported() -> tuple[bool, str]:
        out = run_cli("report", "runs/longer", "--markdown")[1]
        return "Dynamic evaluation and cache" in out, out

    run_cli(*words)
    row = json.loads(path.read_text())
    assert (row["weights"], row["weights_epoch"]) == ("best", 2)
    assert reported()[0]
    more = ("train", "tiny.toml", "--name", "longer", "--set", "training.epochs=6", *CPU)
    assert run_cli(*more)[0] == 0
    assert RunFolder(workspace / "runs/longer").rows()[-1]["epoch"] > 2  # better weights
    shown, page = reported()
    assert (shown, "left out 1 of other weights" in page) == (False, True)
    run_cli(*words)
    assert reported()[0]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("evaluate nowhere", "nowhere: "),
        ("evaluate runs/tiny --device meta", "device meta: "),
        ("evaluate runs/tiny --text nowhere", "nowhere: "),
        ("evaluate runs/tiny --text empty", "empty: "),
        ("evaluate runs/tiny --text text", "text: "),
        ("evaluate runs/tiny --text test --split test", "--split: "),
        ("evaluate runs/tiny --source test --reference test", "--source: "),
        ("dynamic runs/tiny --precision bfloat16", "--precision bfloat16: "),
    ],
)
def test_errors_are_one_line(cli_error, workspace, words, key):
    (workspace / "empty").write_bytes(b"")
    cli_error(*words.split(), key=key)
