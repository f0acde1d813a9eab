"""What is timed, and what becomes a row."""

from argparse import Namespace

import loss
import measure
import pytest
import torch
from cases import Case, Size, random_inputs

CPU = torch.device("cpu")


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
    arguments = Namespace(device=CPU, seconds=0.01, quick=False, json=None)
    rows = measure.measure(variants, arguments, inspect=lambda left: {"left": len(left)})
    assert rows["broken"] == {"error": "no such library"}
    assert (rows["a"]["rounds"], rows["slow"]["rounds"]) == (10, 5)  # for 10 ms, at least 5
    memory = {"peak_extra_bytes": 2**20, "working_bytes": 0, "left": 1}
    times = {"ms_median": 20.0, "ms_min": 20.0, "ms_p90": 20.0, "ms_graph_median": None}
    assert rows["slow"] == {**times, "rounds": 5, **memory}
    turns = calls[4:]  # each was prepared by two calls
    assert turns[:4] == ["a", "slow", "slow", "a"]
    assert turns[-5:] == ["a"] * 5


@pytest.mark.parametrize(("labels", "candidates"), [(100, [100, 128]), (128, [128])])
def test_the_floor_of_the_loss_tries_padded_labels_too(labels, candidates, monkeypatch):
    tried = []

    def first(steps, device):
        tried.extend(steps)
        return steps[0]

    monkeypatch.setattr(loss, "fastest", first)
    case = Case("toy", Size(6, labels, 8), "float32", CPU)
    step = loss.products(case, random_inputs(case))
    assert [len(s()[0][0]) for s in tried or [step]] == candidates
    truth = step()
    for logits, to_hidden, to_weight in (s() for s in tried):
        assert torch.equal(logits[:, :labels], truth[0])
        torch.testing.assert_close(to_hidden, truth[1])  # padding adds nothing
        torch.testing.assert_close(to_weight[:labels], truth[2])
