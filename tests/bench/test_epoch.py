"""Epochs and dynamic evaluation are timed where and as they were asked for; no time is asserted."""

import json
import sys

import epoch
import pytest
import torch

TEXT = "the lamp is lit\nthe boat is late\n" * 150
SMALL = ("encoder.embedding_dim=8", "encoder.hidden_size=12", "training.batch_size=4")
SMALL += ("training.bptt=10",)


@pytest.fixture
def timed(monkeypatch, tmp_path, capsys):
    """Rows, and what was printed, by the arguments of the script."""
    (tmp_path / "text.txt").write_text(TEXT)
    common = ["--recipe", "demo-drill", "--device", "cpu", "--json", str(tmp_path / "rows.jsonl")]
    common += ["--set", f"data.corpus={tmp_path / 'text.txt'}", *SMALL]

    def call(*arguments: str) -> tuple[list[dict[str, object]], str]:
        monkeypatch.setattr(sys, "argv", ["epoch.py", *common, *arguments])
        epoch.main()
        lines = (tmp_path / "rows.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], capsys.readouterr().out

    return call


def test_a_row_is_of_the_device_that_was_asked_for(timed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # another than the one in use
    (row,), printed = timed("--epochs", "3", "--precision", "float32")
    assert (row["benchmark"], row["name"]) == ("epoch", "demo-drill")
    assert f"({torch.get_num_threads()} threads)" in row["device"]
    assert len(row["seconds"]) == 2
    assert f"{row['seconds_median']:.2f}" in printed
    assert "dynamic_seconds" not in row


@pytest.mark.parametrize(("precision", "chosen"), [("bfloat16", "tf32"), ("float32", "float32")])
def test_one_epoch_is_enough_for_dynamic_evaluation(timed, calls_of, precision, chosen):
    """In the precision that `drill evaluate` takes for it."""
    calls = calls_of(epoch, "matmul_precision")
    (row,), printed = timed("--epochs", "1", "--dynamic", "--precision", precision)
    assert [call.arguments for call in calls] == [(chosen, torch.device("cpu"))]
    assert row["dynamic_precision"] == "float32"  # a CPU has no tf32
    assert 0 < row["statistics_seconds"] < row["dynamic_seconds"]
    assert row["dynamic_perplexity"] > 1
    assert "seconds_median" not in row
    for key, digits in (("first_seconds", 2), ("dynamic_seconds", 1)):
        assert f"{row[key]:.{digits}f}" in printed
