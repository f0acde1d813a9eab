"""Two processes on the CPU: the losses of one process, and checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.helpers.processes import two_processes
from tests.hf.tiny_models import logits

pytest.importorskip("accelerate", reason="needs accelerate")
from tests.hf.train_in_processes import parts, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs torch with gloo"),
]


@pytest.fixture(scope="module")
def one_process():
    """Losses of four steps, and the logits after them."""
    model, optimizer, ids = parts()
    return train(model, optimizer, ids), logits(model)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fully_shard", "fsdp1", "tensor_parallel"])
def test_two_processes_train_as_one(kind, one_process, tmp_path):
    two_processes(Path(__file__).with_name("train_in_processes.py"), kind, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    losses, expected = one_process
    assert report["losses"] == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(torch.tensor(report["logits"]), expected, rtol=1e-3, atol=1e-3)
    if kind == "fsdp2":
        assert report["shared"]  # the head encodes the embedding, sharded once
        assert report["resumed"]  # from a sharded checkpoint, in another model
