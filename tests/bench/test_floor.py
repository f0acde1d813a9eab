"""The floor of the loss benchmark: the fastest way to the three products."""

import time
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def from_the_folder_of_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def test_the_fastest_step_wins():
    import timing

    quick, slow = (lambda: []), (lambda: time.sleep(0.002) or [])
    for steps in ([quick, slow], [slow, quick]):
        assert timing.fastest(steps, torch.device("cpu")) is quick


@pytest.mark.parametrize(("labels", "candidates"), [(100, [100, 128]), (128, [128])])
def test_ragged_labels_are_tried_padded_too(labels, candidates, monkeypatch):
    import loss
    from setting import Setting, Size, head

    tried = []

    def first(steps, device):
        tried.extend(steps)
        return steps[0]

    monkeypatch.setattr(loss, "fastest", first)
    setting = Setting("toy", Size(6, labels, 8), "float32", torch.device("cpu"))
    step = loss.products(setting, head(setting))
    assert [len(s()[0][0]) for s in tried or [step]] == candidates
    truth = step()
    for logits, to_hidden, to_weight in (s() for s in tried):
        assert torch.equal(logits[:, :labels], truth[0])
        torch.testing.assert_close(to_hidden, truth[1])  # padding adds nothing
        torch.testing.assert_close(to_weight[:labels], truth[2])
