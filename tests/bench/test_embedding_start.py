"""The comparison of starts trains what it says, and its table has a row a head."""

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import embedding_start

    return embedding_start


def test_every_head_learns_a_text_that_repeats_itself(bench, monkeypatch):
    monkeypatch.setattr(bench, "RATE", 1e-2)
    text = torch.arange(9).repeat(500)
    found = {
        head: {start: bench.perplexity(head, start, text, text, 9, 2) for start in bench.STARTS}
        for head in bench.HEADS
    }
    for by_start in found.values():
        assert 1.0 < by_start["uniform in ±0.1"] < 3.0
    rows = list(bench.table(found))
    assert len(rows) == 2 + len(bench.HEADS)
    assert (
        rows[2]
        == "| nn.Linear | " + " | ".join(f"{x:.1f}" for x in found["nn.Linear"].values()) + " |"
    )


def test_a_tied_head_holds_the_embedding_itself(bench):
    embedding = torch.nn.Embedding(9, bench.WIDTH)
    assert bench.tied(embedding)[0].weight is embedding.weight
