"""A damaged file that training needs later is named when a run is resumed, not epochs later."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from drill.cli.listings import descriptions
from drill.errors import CheckpointError, DrillError, OutOfMemory, RunFolderError
from drill.training.device import check_memory, meta_init
from drill.training.run import checkpoint
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import FRACTIONS_OF_RUN, warn_of_another_end
from drill.training.settings import recipe
from tests.helpers.files import contents
from tests.helpers.language_models import interrupted_after, small_run
from tests.helpers.translators import small_optimizer, small_training


@pytest.fixture
def stopped(tmp_path) -> RunFolder:
    """A run that was interrupted in its second epoch."""
    small_run(tmp_path, "tied", interrupted_after(14, "adamw"), epochs=2, validate_first=True)
    assert RunFolder(tmp_path).best.exists()
    return RunFolder(tmp_path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@contextmanager
def fails(folder: Path, error: type[Exception], name: str) -> Iterator[None]:
    """An error that names a file, and nothing is written."""
    before = contents(folder)
    with pytest.raises(error, match=re.escape(name)):
        yield
    assert contents(folder) == before


def test_damaged_best_weights(stopped):
    flip(stopped.best)
    with fails(stopped.path, CheckpointError, "best.safetensors"):
        small_run(stopped.path, "tied", "adamw", epochs=2)


def test_damaged_weights_for_averaging(tmp_path):
    options = {"average_checkpoints": 2, "validate_every": 2}
    small_training(tmp_path, optimizer=interrupted_after(5, small_optimizer()), **options)
    recent = sorted((tmp_path / "last").glob("recent-*"))
    assert recent
    flip(recent[0])
    with fails(tmp_path, CheckpointError, recent[0].name):
        small_training(tmp_path, **options)


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t.double()], ids=["shape", "dtype"])
def test_optimizer_state_of_another_model(stopped, change):
    tensors, numbers = checkpoint.load(stopped.last)
    key = next(name for name in tensors if name.endswith("/exp_avg"))
    checkpoint.save(stopped.last, tensors | {key: change(tensors[key])}, numbers)
    with pytest.raises(CheckpointError, match="exp_avg"):
        small_run(stopped.path, "tied", "adamw", epochs=2)


def test_metrics_with_other_line_ends(stopped):
    small_run(stopped.path, "tied", interrupted_after(14, "adamw"), epochs=3)
    stopped.metrics.write_bytes(stopped.metrics.read_bytes().replace(b"\n", b"\r\n"))
    with fails(stopped.path, RunFolderError, "metrics.jsonl"):
        small_run(stopped.path, "tied", "adamw", epochs=4)


@pytest.mark.parametrize(
    ("line", "epochs"), [('{"kind": "test"}', 2), ('{"kind": "test", "epoch": 1}', 3), ("{}", 2)]
)
def test_a_stray_line_of_metrics(stopped, line, epochs):
    small_run(stopped.path, "tied", "adamw", epochs=2)
    stopped.metrics.write_bytes(stopped.metrics.read_bytes() + line.encode() + b"\n")
    with pytest.raises(DrillError, match=r"metrics\.jsonl"):
        small_run(stopped.path, "tied", "adamw", epochs=epochs)


@pytest.mark.parametrize("content", ["", "[]", '{"resumed": 7}', '{"resumed": [7]}'])
def test_a_damaged_environment(stopped, content):
    stopped.environment.write_text(content)
    with pytest.raises(RunFolderError, match=r"environment\.json"):
        stopped.working_folder()
    stopped.environment.write_text(json.dumps({"resumed": [{"working_folder": "here"}]}))
    assert stopped.working_folder() == "here"


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ("optimizer.name=nt-asgd", []),
        ("optimizer.schedule=constant optimizer.warmup=0", []),
        ("optimizer.schedule=constant", ["optimizer.warmup"]),
        ("optimizer.schedule=inverse-sqrt", []),
        ("optimizer.schedule=one-cycle", ["optimizer.schedule", "optimizer.warmup"]),
        ("optimizer.warmup=0", ["optimizer.schedule"]),
        ("optimizer.name=sgd optimizer.average_from=0.5", ["optimizer.average_from"]),
        ("optimizer.name=nt-asgd optimizer.map_warmup=0.1", ["optimizer.map_warmup"]),
        ("optimizer.name=nt-asgd training.untie_at=0.5", ["training.untie_at"]),
    ],
)
def test_one_warning_names_what_another_end_of_the_run_changes(caplog, changes, moved):
    own = recipe("demo-drill", ["optimizer.name=adamw", *changes.split()])
    longer = own.changed(training={"epochs": 9, "max_steps": 900})
    warn_of_another_end(own, own, RunFolder("runs/a"))
    assert caplog.messages == []
    warn_of_another_end(longer, own, RunFolder("runs/a"))
    assert len(caplog.messages) == bool(moved)
    named = re.findall(r"(?:optimizer|training)\.\w+", "".join(caplog.messages))
    assert named == (["training.epochs", "training.max_steps", *moved] if moved else [])


def test_all_fractions_of_a_run_are_known():
    keys = {
        f"{table}.{key}"
        for table, settings in descriptions().items()
        for key, text in settings.items()
        if text.startswith("fraction of the run")
    }
    assert keys == {*FRACTIONS_OF_RUN}


def test_a_model_larger_than_memory():
    with meta_init():
        model = torch.nn.Linear(2**20, 2**30)
    with pytest.raises(OutOfMemory, match="GiB"):
        check_memory(model.parameters())
    check_memory(torch.nn.Linear(2, 3).parameters())
