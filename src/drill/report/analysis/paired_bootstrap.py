"""Which of two models is better on a text, by a paired bootstrap over its lines.

Lines are drawn with replacement, the same for both models, so what makes a line hard for both
cancels out. The interval says how far the difference depends on the lines of this text; it says
nothing about other seeds of training (`drill study` does).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drill.data import DataError
from drill.translation.bleu import bleu_metric, sacrebleu

SAMPLES = 2000
NUMBERS = 1 << 22  # drawn at once

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairedDifference:
    """B less A on the whole text, its 95% interval, and the shares of samples in which B is lower
    and higher."""

    difference: float
    low: float
    high: float
    lower: float
    higher: float


def paired_bootstrap(
    lines: Floats, difference: Callable[[Floats], Floats], *, samples: int = SAMPLES, seed: int = 0
) -> PairedDifference:
    """The difference of two models over resampled lines.

    Args:
        lines: (L, S) statistics of each line that add up over lines.
        difference: sums of them (n, S) -> B less A (n,).
        samples: how many texts are drawn.
        seed: of the random numbers.

    Returns:
        The difference on the whole text and its 95% interval.
    """
    if len(lines) < 2:
        raise DataError(f"a text of {len(lines)} lines cannot be resampled; give more")
    rng = np.random.default_rng(seed)
    at_once = max(1, NUMBERS // lines.size)
    chunks = []
    for start in range(0, samples, at_once):
        drawn = rng.integers(len(lines), size=(min(at_once, samples - start), len(lines)))
        chunks.append(difference(lines[drawn].sum(1)))
    differences = np.concatenate(chunks)
    low, high = np.quantile(differences, (0.025, 0.975))
    whole = difference(lines.sum(0, keepdims=True))[0]
    below, above = float((differences < 0).mean()), float((differences > 0).mean())
    return PairedDifference(float(whole), float(low), float(high), below, above)


def loss_difference(sums: Floats) -> Floats:
    """B less A in nats per token, from the columns loss of A, loss of B, tokens."""
    return (sums[:, 1] - sums[:, 0]) / sums[:, 2]


def line_losses(a: Floats, b: Floats, targets: NDArray[Any], end: int) -> Floats:
    """Columns for ``loss_difference``, a row for each line, which the id ``end`` ends.

    Losses and targets are (N,).
    """
    line = np.cumsum(targets == end) - (targets == end)
    return np.stack([np.bincount(line, weights=w) for w in (a, b, np.ones(len(line)))], axis=1)


def bleu_difference(sums: Floats) -> Floats:
    """BLEU of B less that of A, from the columns of two ``bleu_statistics``, A first."""
    half = sums.shape[1] // 2
    return np.array([corpus_bleu(row[half:]) - corpus_bleu(row[:half]) for row in sums])


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Floats:
    """(L, 10): matched and written n-grams of order 1 to 4, words written, words wanted."""
    metric = bleu_metric(language, effective_order=True)
    pairs = zip(hypotheses, references, strict=True)
    scores = [metric.sentence_score(line, [wanted]) for line, wanted in pairs]
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], dtype=float)


def corpus_bleu(sums: Floats) -> float:
    """BLEU, 0 to 100, of summed ``bleu_statistics`` (10,)."""
    whole, bleu = sums.astype(int).tolist(), sacrebleu().metrics.BLEU
    return float(bleu.compute_bleu(whole[:4], whole[4:8], *whole[8:], smooth_method="exp").score)
