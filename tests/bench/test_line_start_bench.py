"""What a line's first word costs is read off the right places."""

from pathlib import Path

import pytest
import torch

from tests.language_modeling.models import language_model, plain_losses
from tests.translation.words import VOCABULARY, WORDS, begun, log_probs_after

ROOT = Path(__file__).parents[2]
LINES = ["the boat is late", "a lamp is lit", "and the sea", "lit"]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import line_start

    return line_start


def test_costs_are_of_the_first_words_of_lines_that_follow_others(bench):
    model, ids = language_model("tied"), VOCABULARY.encode(LINES)
    found = bench.costs(model, ids, WORDS.index("<eos>"), lines=2)
    firsts = [WORDS.index("a"), WORDS.index("and")]
    for name, start, ends in (
        ("in the zero state, after `<eos>`", None, 1),
        ("after `<eos>` 4 times", None, 4),
        ("in the start state, after `<eos>`", begun(model), 1),
    ):
        truth = log_probs_after(model, ["<eos>"] * (ends - 1), start)[firsts]
        assert found[name] == pytest.approx(-float(truth.mean()), rel=1e-9)
    stream = plain_losses(model, ids)[torch.tensor([4, 9])]  # after four words and their end
    assert found["after the lines before it"] == pytest.approx(float(stream.mean()), rel=1e-6)
    head, rule, first, *_ = bench.table({"one": found, "other": found})
    assert (head, rule) == ("| the line begins | one | other |", "|---|---:|---:|")
    assert first.count(f"{found['in the zero state, after `<eos>`']:.2f}") == 2
