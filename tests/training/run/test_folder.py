"""A run's folder: one process at a time, metrics that can be cut back, weights behind them."""

import errno
import json
import math
import os
import signal
import sys
import types
from unittest.mock import Mock, call

import pytest
import torch

from drill.errors import RunFolderError
from drill.files import WriteError
from drill.training.run.checkpoint import fingerprint_in
from drill.training.run.folder import NO_LOCKS, RunFolder
from tests.helpers.files import disk_full

ROW = {"kind": "epoch", "epoch": 1, "step": 7, "valid_loss": 1 / 3, "best": True}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


# -- the lock -------------------------------------------------------------------------------------


def test_a_killed_process_holds_no_lock(folder):
    reading, writing = os.pipe()
    holder = os.fork()
    if not holder:
        with folder.locked():
            os.write(writing, b"locked")
            signal.pause()
    try:
        assert os.read(reading, 6) == b"locked"
        with pytest.raises(RunFolderError, match="run: another process"), folder.locked():
            pass
        with RunFolder(folder.path.parent / "other").locked():
            pass
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(reading)
        os.close(writing)
    with folder.locked():
        pass


def test_a_file_system_without_locks_is_said_and_not_taken_for_another_process(
    folder, monkeypatch, caplog
):
    no_locks = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=no_locks))
    with folder.locked():
        pass
    assert [record.message for record in caplog.records] == [NO_LOCKS]


def test_what_a_killed_writer_left_is_removed_and_nothing_else(folder):
    folder.save_last({"a": torch.ones(2)}, {})
    folder.save_best({"a": torch.ones(2)}, {})
    left = [
        folder.path / "last" / ".checkpoint.safetensors.0123456789abcdef.tmp",
        folder.path / ".best.safetensors.0123456789abcdef.tmp",
        folder.path / ".recipe.toml.0123456789abcdef.tmp",
    ]
    other = [folder.path / "notes.tmp", folder.path / ".best.safetensors.copy"]
    for path in (*left, *other):
        path.write_bytes(b"half")
    with folder.locked():
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in (*other, folder.best, folder.last))


# -- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_strings_in_valid_json(folder, value):
    folder.append({**ROW, "valid_loss": value})
    line = folder.metrics.read_text()
    assert json.loads(line, parse_constant=pytest.fail)["valid_loss"] == str(value)


def test_a_half_written_last_line_is_left_out(folder):
    folder.append(ROW)
    folder.append({**ROW, "epoch": 2})
    whole = folder.metrics.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole)):
        folder.metrics.write_bytes(whole[:size])
        assert folder.rows() == [ROW]
    folder.metrics.write_bytes(whole[:first] + "{'ö".encode()[:-1])
    assert folder.rows() == [ROW]


@pytest.mark.parametrize(
    "line",
    [b"{", b"", b"7", b"\xff{}", b"[" * 10**5],
    ids=["half", "empty", "number", "bytes", "deep"],
)
def test_a_damaged_line_is_named(folder, line):
    folder.append(ROW)
    folder.metrics.write_bytes(folder.metrics.read_bytes() + line + b"\n")
    folder.append(ROW)
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: line 2 is no JSON object"):
        folder.rows()


def test_a_resume_cuts_what_came_after_its_checkpoint(folder):
    folder.append(ROW)
    size = folder.metrics_size()
    folder.append({**ROW, "epoch": 2})
    folder.metrics.write_bytes(folder.metrics.read_bytes() + b'{"kind": "ep')
    folder.cut_metrics(size)
    assert folder.metrics_size() == size
    assert folder.rows() == [ROW]
    folder.append({**ROW, "epoch": 2})
    assert [row["epoch"] for row in folder.rows()] == [1, 2]


def test_tensorboard_shows_rows_without_those_that_a_resume_cut(folder, monkeypatch):
    boards: list[Mock] = []

    def writer(folder: str) -> Mock:
        boards.append(Mock(folder=folder))
        return boards[-1]

    module = types.SimpleNamespace(SummaryWriter=writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    folder.append({**ROW, "seconds": 2.0, "elapsed": 9.0, "train_loss": None})
    size = folder.metrics_size()
    folder.append({**ROW, "step": 8, "lr": math.inf})
    events = folder.path / "tensorboard" / "events.out.tfevents.1.host"
    events.parent.mkdir()
    events.write_bytes(b"of the first start")
    again = RunFolder(folder.path)
    again.cut_metrics(size)
    again.append({**ROW, "step": 9})
    first, second = boards
    assert first.folder == second.folder == str(events.parent)
    assert first.add_scalar.call_args == call("epoch/lr", math.inf, 8)
    assert second.add_scalar.call_args_list == [
        call("epoch/valid_loss", 1 / 3, 7),
        call("epoch/seconds", 2.0, 7),
        call("epoch/valid_loss", 1 / 3, 9),
    ]
    assert second.method_calls[-1] == call.flush()
    assert not events.exists()


@pytest.mark.parametrize("weights", ["best", "averaged"])
def test_the_line_of_the_test_names_the_weights_it_is_of(folder, weights):
    folder.save_best({"bias": torch.ones(3)}, {"epoch": 1})
    folder.save_averaged({"bias": torch.zeros(3)}, {"steps": [1, 2]})
    folder.append_test({"kind": "test", "epoch": 1, "weights": weights})
    path = folder.best if weights == "best" else folder.averaged
    assert folder.test_row()["weights_fingerprint"] == fingerprint_in(path)
    assert fingerprint_in(folder.best) != fingerprint_in(folder.averaged)


def test_a_full_disk_is_named_with_the_file(folder, monkeypatch):
    folder.write_json(folder.environment, {"drill": "0.1.0"})
    before = folder.environment.read_bytes()
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(WriteError, match=r"metrics\.jsonl: cannot be written \(No space"):
        folder.append(ROW)
    with pytest.raises(WriteError, match=r"environment\.json: cannot be written \(No space"):
        folder.write_json(folder.environment, {})
    assert folder.environment.read_bytes() == before
