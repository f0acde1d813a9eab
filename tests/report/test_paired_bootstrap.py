"""The paired bootstrap: numbers that are known, and what sacrebleu says of BLEU."""

import numpy as np
import pytest

from drill.data import DataError
from drill.report.analysis.paired_bootstrap import (
    bleu_difference,
    bleu_statistics,
    corpus_bleu,
    line_losses,
    loss_difference,
    paired_bootstrap,
)
from drill.translation.bleu import corpus_scores


def columns(change: float, noise: float, lines: int = 400, seed: int = 1):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 30, lines).astype(float)
    a = rng.gamma(4.0, size=lines) * tokens
    b = a + (change + noise * rng.standard_normal(lines)) * tokens
    return np.stack([a, b, tokens], axis=1)


def test_the_interval_has_the_width_of_the_normal_one():
    lines = columns(-0.1, noise=0.5)
    found = paired_bootstrap(lines, loss_difference)
    residual = lines[:, 1] - lines[:, 0] - found.difference * lines[:, 2]
    error = np.sqrt((residual**2).sum()) / lines[:, 2].sum()
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert found.low < found.difference < found.high < 0.0
    assert found.lower > 0.97


def test_the_same_seed_gives_the_same_interval_however_many_are_drawn_at_once(monkeypatch):
    lines = columns(0.1, 0.5)
    once = paired_bootstrap(lines, loss_difference)
    assert once == paired_bootstrap(lines, loss_difference)
    assert once != paired_bootstrap(lines, loss_difference, seed=1)
    monkeypatch.setattr("drill.report.analysis.paired_bootstrap.NUMBERS", 1)
    assert once == paired_bootstrap(lines, loss_difference)


def test_one_line_cannot_be_resampled():
    with pytest.raises(DataError):
        paired_bootstrap(columns(0.0, 1.0, lines=1), loss_difference)


def test_losses_are_summed_by_line():
    losses = np.arange(6.0)
    targets = np.array([3, 9, 9, 4, 5, 9])
    found = line_losses(losses, 2 * losses, targets, end=9)
    assert found.tolist() == [[1.0, 2.0, 2.0], [2.0, 4.0, 1.0], [12.0, 24.0, 3.0]]


HYPOTHESES = ["Der Hund schläft.", "Eine Katze sitzt auf dem Tisch.", "Es regnet heute sehr."]
REFERENCES = ["Der Hund schläft fest.", "Eine Katze sitzt auf der Bank.", "Heute regnet es sehr."]


def test_bleu_of_summed_statistics_is_that_of_the_text():
    pytest.importorskip("sacrebleu")
    lines = bleu_statistics(HYPOTHESES, REFERENCES, "de")
    expected = corpus_scores(HYPOTHESES, REFERENCES).bleu
    assert corpus_bleu(lines.sum(0)) == pytest.approx(expected, abs=1e-9)
    both = np.concatenate([lines, bleu_statistics(REFERENCES, REFERENCES, "de")], axis=1)
    found = paired_bootstrap(both, bleu_difference, samples=50)
    assert found.difference == pytest.approx(100.0 - expected)
    assert found.higher == 1.0
