"""What is timed, and what becomes a row."""

import json
import sys
from argparse import Namespace

import loss
import measure
import pytest
import torch
from setting import Setting, Size, head, parser, settings

CPU = torch.device("cpu")
SETTING = Setting("toy", Size(6, 100, 8), "float32", CPU)


def arguments(**more: object) -> Namespace:
    return Namespace(device=CPU, seconds=0.01, quick=False, json=None, **more)


def test_variants_take_turns_and_an_error_is_a_row(monkeypatch):
    calls = []
    ms = {"a": 1.0, "slow": 20.0}  # a clock that no busy machine disturbs

    def prepare(name: str) -> measure.Step:
        return lambda: calls.append(name) or [torch.ones(256, 1024)]

    def broken() -> measure.Step:
        raise ImportError("no such library\nmore")

    monkeypatch.setattr(measure, "_cpu_stopwatch", lambda step: step() and ms[calls[-1]])
    monkeypatch.setattr(measure, "WARM_UP_SECONDS", 0.0)
    variants = {"a": lambda: prepare("a"), "broken": broken, "slow": lambda: prepare("slow")}
    rows = measure.measure(variants, arguments(), inspect=lambda left: {"left": len(left)})
    assert rows["broken"] == {"error": "no such library"}
    assert (rows["a"]["rounds"], rows["slow"]["rounds"]) == (10, 5)  # for 10 ms, at least 5
    memory = {"peak_extra_bytes": 2**20, "working_bytes": 0, "left": 1}
    times = {"ms_median": 20.0, "ms_min": 20.0, "ms_p90": 20.0, "ms_graph_median": None}
    assert rows["slow"] == {**times, "rounds": 5, **memory}
    turns = calls[4:]  # each was prepared by two calls
    assert turns[:4] == ["a", "slow", "slow", "a"]
    assert turns[-5:] == ["a"] * 5


def test_a_report_writes_rows_and_prints_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x.py", "--json", "file", "--size", "ptb"])
    monkeypatch.setenv("DRILL_COMMIT", "abc")
    file = tmp_path / "rows.jsonl"
    report = measure.Report("loss", Namespace(device=CPU, json=file))
    results = {"GEMM floor": {"ms_median": 2.0}, "b": {"ms_median": 5.0}, "c": {"error": "gone"}}
    report.add(SETTING, results, sharp=True)
    report.finish("a note")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["GEMM floor", "b", "c"]
    about = {"tokens": 6, "labels": 100, "width": 8, "dtype": "float32", "size": "toy"}
    about |= {"sharp": True, "commit": "abc", "arguments": "--size ptb"}
    assert all(about.items() <= row.items() for row in rows)
    assert f"({torch.get_num_threads()} threads)" in rows[0]["device"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed if line.startswith("b ")] == [["b", "5.000", "2.50"]]
    assert printed[-2:] == ["c: gone", "a note"]


@pytest.mark.parametrize(("labels", "candidates"), [(100, [100, 128]), (128, [128])])
def test_the_floor_of_the_loss_tries_padded_labels_too(labels, candidates, monkeypatch):
    tried = []

    def first(steps, device):
        tried.extend(steps)
        return steps[0]

    monkeypatch.setattr(loss, "fastest", first)
    setting = Setting("toy", Size(6, labels, 8), "float32", CPU)
    step = loss.products(setting, head(setting))
    assert [len(s()[0][0]) for s in tried or [step]] == candidates
    truth = step()
    for logits, to_hidden, to_weight in (s() for s in tried):
        assert torch.equal(logits[:, :labels], truth[0])
        torch.testing.assert_close(to_hidden, truth[1])  # padding adds nothing
        torch.testing.assert_close(to_weight[:labels], truth[2])


def test_sizes_and_precisions():
    args = parser("", ["ptb", "wt2"]).parse_args(["--device", "cpu"])
    (setting,) = settings(args, ["ptb", "wt2"])
    assert (setting.name, setting.dtype, setting.size) == ("ptb", "float32", (1400, 10_000, 400))
    args.quick, args.size, args.dtype = True, ["wt2"], ["float32", "autocast"]
    found = [(each.size, each.dtype, each.products) for each in settings(args, ["ptb"])]
    size = (280, 3327, 50)
    assert found == [(size, "float32", torch.float32), (size, "autocast", torch.bfloat16)]
    args.dtype = ["tf32"]
    with pytest.raises(SystemExit, match="tf32"):
        list(settings(args, ["ptb"]))
