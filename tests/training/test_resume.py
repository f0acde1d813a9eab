"""A run that was interrupted or killed comes to what it would have come to, bit for bit."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drill.errors import CheckpointError, RunFolderError
from drill.training.cuda_graphs import GraphCapture
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import (
    OPTIMIZERS,
    after,
    differences,
    interrupted_after,
    interrupted_replays,
    rows,
    run_state,
    small_run,
    train_in_pieces,
)
from tests.helpers.processes import python
from tests.helpers.tasks import LM, MT, TASKS
from tests.helpers.translators import small_optimizer

TWO_BATCHES = {"gradient_accumulation_steps": 2}
ASGD = {"validate_first": True, "patience": 0, "length_cap": 12}
NOISE = {"adversarial": 0.05, "state_reset": 0.2}
SHUFFLED = {"partial_shuffle": True, "validate_every": 3, "untie_at": 0.5}
AVERAGED = {**TWO_BATCHES, "average_checkpoints": 2, "validate_every": 3}
BLEU = {"precision": "bfloat16", "bleu_every": 2, "epochs": 2, "log_every": 2}
PIECES = [
    (LM, "nt-asgd", "deep-residual", 9, {}),
    (LM, "asgd", "tied", 7, {**ASGD, "precision": "bfloat16"}),
    (LM, "adamw", "mixture", 13, {"micro_batch": 3, "epochs": 3}),
    (LM, "late sgd", "tied", 7, SHUFFLED),
    (LM, "late adamw", "tied", 13, {"validate_every": 5, "log_every": 1}),
    (MT, None, "tied", 7, AVERAGED),
]
MORE_PIECES = [
    (LM, "sgd", "tied", 5, {"precision": "bfloat16"}),
    (LM, "nt-asgd", "deep-residual", 1, {}),
    (LM, "nt-asgd", "sampled", 3, {}),
    (LM, "nt-asgd", "adaptive", 7, {}),
    (LM, "nt-asgd", "tied", 6, {"dtype": torch.float64}),
    (LM, "asgd", "tied", 1, ASGD),
    (LM, "adamw", "deep-residual", 3, {"validate_every": 4}),
    (LM, "late sgd", "deep-residual", 7, NOISE),
    (LM, "sgd", "tied", 4, {"state_reset": 0.2, "micro_batch": 3}),
    (MT, None, "deep-residual", 1, {"epochs": 2}),
    (MT, None, "mixture", 5, TWO_BATCHES),
    (MT, None, "tied", 3, BLEU),
]
REPLAYED = [
    (LM, optimizer, "deep-residual", 13, {"precision": precision, "device": "cuda"})
    for optimizer in ("sgd", "nt-asgd", "adamw", "late sgd", "late adamw")
    for precision in ("tf32", "bfloat16")
]


@pytest.mark.parametrize(
    ("task", "optimizer", "layer", "steps", "options"),
    [
        *PIECES,
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_PIECES),
        *(pytest.param(*each, marks=pytest.mark.gpu) for each in REPLAYED),
    ],
)
def test_an_interrupted_run_is_the_same_run(
    tmp_path, calls_of, task, optimizer, layer, steps, options
):
    captures = calls_of(GraphCapture, "capture")
    run, fresh = TASKS[task].run, OPTIMIZERS[optimizer] if optimizer else small_optimizer
    options = {"epochs": 4, **options} if task == LM else options
    run(tmp_path / "whole", layer, optimizer=fresh(), **options)
    interrupt = interrupted_replays if "device" in options else interrupted_after
    starts = train_in_pieces(
        lambda: run(tmp_path / "pieces", layer, optimizer=interrupt(steps, fresh()), **options)
    )
    assert bool(captures) == ("device" in options)
    whole = run_state(tmp_path / "whole")
    epochs = [row for row in whole["rows"] if row["kind"] == "epoch"]
    if optimizer and (optimizer == "nt-asgd" or optimizer.startswith("late")):
        assert {row["averaged"] for row in epochs} == {False, True}  # averaging starts inside
    assert starts == epochs[-1]["step"] // steps + 1
    assert differences(run_state(tmp_path / "pieces"), whole) == []
    files = [RunFolder(tmp_path / name).best.read_bytes() for name in ("whole", "pieces")]
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def kill_harness(tmp_path_factory) -> tuple[Path, dict]:
    """Many runs of killed processes, see tests/helpers/kill_harness.py."""
    folder = tmp_path_factory.mktemp("kill_harness")
    python("-m", "tests.helpers.kill_harness", folder, 1)
    reports = folder.glob("*/report.json")
    return folder, {path.parent.name: json.loads(path.read_text()) for path in reports}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "least"),
    [("at_random", 8), ("of_a_translator", 8), ("in_a_save", 15), ("from_the_start", 8)],
)
def test_a_killed_run_is_the_same_run(kill_harness, scenario, least):
    folder, report = kill_harness
    assert report[scenario]["kills"] >= least
    whole = run_state(folder / scenario / "whole")
    if scenario in ("at_random", "in_a_save"):
        assert {row.get("averaged") for row in whole["rows"]} >= {False, True}
    for name in report[scenario]["runs"]:
        assert differences(run_state(folder / scenario / name), whole) == [], name


@pytest.mark.slow
def test_a_killed_run_of_a_recipe_leaves_no_half_files(kill_harness):
    folder, report = kill_harness

    def files(name: str) -> set[str]:
        entries = (folder / "from_the_start" / name).rglob("*")
        return {path.name for path in entries if "tensorboard" not in path.parts}

    for name in report["from_the_start"]["runs"]:
        assert files(name) == files("whole")


@pytest.mark.parametrize("task", TASKS)
def test_a_finished_run_gives_its_outcome_again_without_training(tmp_path, task):
    run, fresh = TASKS[task].run, OPTIMIZERS["nt-asgd"] if task == LM else small_optimizer
    first = run(tmp_path, optimizer=fresh(), epochs=3)
    before = run_state(tmp_path)
    again = run(tmp_path, optimizer=after(1, fresh(), pytest.fail), epochs=3)
    if task == MT:  # the hypotheses are in the folder only
        assert again.test.scores == first.test.scores
        again = replace(again, valid=first.valid, test=first.test)
    assert again == first
    assert differences(run_state(tmp_path), before) == []


@pytest.mark.parametrize(
    "optimizer",
    ["nt-asgd", *(pytest.param(each, marks=pytest.mark.slow) for each in ("asgd", "sgd"))],
)
def test_more_epochs_resume_from_the_end(tmp_path, optimizer):
    small_run(tmp_path / "whole", optimizer=optimizer, epochs=4)
    for epochs in (1, 2, 4):
        outcome = small_run(tmp_path / "raised", optimizer=optimizer, epochs=epochs)
        assert outcome.finished
        assert outcome.epoch == epochs
        tests = [row["kind"] for row in rows(tmp_path / "raised")].count("test")
        assert tests == 1  # that of fewer epochs goes
    assert differences(run_state(tmp_path / "raised"), run_state(tmp_path / "whole")) == []


def interrupted(tmp_path: Path) -> RunFolder:
    assert not small_run(tmp_path, optimizer=interrupted_after(15, "sgd")).finished
    return RunFolder(tmp_path)


def test_damaged_files_and_other_models_are_named_and_nothing_is_written(tmp_path):
    folder = interrupted(tmp_path)
    sound, metrics = folder.last.read_bytes(), folder.metrics.read_bytes()

    def fails(error: type[Exception], *words: str, **options: Any) -> None:
        before = folder.last.read_bytes(), folder.metrics.read_bytes()
        with pytest.raises(error) as caught:
            small_run(tmp_path, **options)
        assert all(word in str(caught.value) for word in words)
        assert (folder.last.read_bytes(), folder.metrics.read_bytes()) == before

    fails(CheckpointError, str(folder.last), "does not fit the model", layer="deep-residual")
    fails(CheckpointError, str(folder.last), "does not fit this run", optimizer="nt-asgd")
    folder.last.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    fails(CheckpointError, str(folder.last), "is damaged")
    folder.last.write_bytes(sound)
    os.truncate(folder.metrics, 10)
    fails(RunFolderError, "metrics.jsonl")
    folder.metrics.write_bytes(metrics)
    assert small_run(tmp_path).finished


@pytest.mark.parametrize(("name", "number"), [(LM, "lengths"), (MT, "validations")])
def test_a_checkpoint_that_lacks_a_number_is_named(tmp_path, name, number):
    task, folder = TASKS[name], RunFolder(tmp_path)
    task.run(tmp_path, optimizer=interrupted_after(5, task.optimizer()))
    tensors, numbers = folder.load_last()
    del numbers[number]
    checkpoint.save(folder.last, tensors, numbers)
    with pytest.raises(CheckpointError, match=str(folder.last)):
        task.run(tmp_path)


def test_a_run_without_its_checkpoint_starts_over(tmp_path):
    small_run(tmp_path / "whole")
    folder = interrupted(tmp_path / "run")
    folder.last.unlink()
    small_run(tmp_path / "run")
    assert differences(run_state(tmp_path / "run"), run_state(tmp_path / "whole")) == []
