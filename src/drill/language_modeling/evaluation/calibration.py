"""Calibration: how often the likeliest token is right, against the probability that it gets.

    ECE = sum_b n_b / N |accuracy_b - confidence_b|

The expected calibration error (Guo et al., ICML 2017) over bins of equal width of the confidence,
which is the probability of the likeliest token.
"""

from dataclasses import dataclass

import torch

from drill.files import OnProgress
from drill.language_modeling.evaluation.perplexity import Text, check_and_batchify, predictions
from drill.models.language_model import LanguageModel

BINS = 15  # as in the paper


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions whose confidence is from ``low`` to ``high``."""

    low: float
    high: float
    tokens: int
    confidence: float  # mean over the tokens
    accuracy: float  # the share of tokens whose likeliest token is the right one


@dataclass(frozen=True)
class Calibration:
    """The bins that have tokens, in rising order of confidence."""

    bins: tuple[ReliabilityBin, ...]

    @property
    def tokens(self) -> int:
        return sum(b.tokens for b in self.bins)

    @property
    def ece(self) -> float:
        """Expected calibration error, 0 to 1."""
        return self._mean([abs(b.accuracy - b.confidence) for b in self.bins])

    @property
    def accuracy(self) -> float:
        return self._mean([b.accuracy for b in self.bins])

    @property
    def confidence(self) -> float:
        """Mean confidence; above ``accuracy`` the model is overconfident."""
        return self._mean([b.confidence for b in self.bins])

    def _mean(self, values: list[float]) -> float:
        """The mean over tokens of ``values``, one for each bin."""
        pairs = zip(self.bins, values, strict=True)
        return sum(b.tokens * value for b, value in pairs) / self.tokens


def calibration(
    model: LanguageModel,
    ids: Text,
    *,
    batch_size: int = 10,
    bptt: int = 70,
    autocast: torch.dtype | None = None,
    progress: OnProgress | None = None,
) -> Calibration:
    """The calibration of a model on a text, in eval mode.

    Args:
        model: in any mode; it is left as it was.
        ids: (N,), cut into ``batch_size`` streams without the rest, or (rows, B).
        batch_size: larger ones are faster and lose more context.
        bptt: rows that are encoded at a time.
        autocast: for example torch.bfloat16.
        progress: called with the tokens done and all there are.

    Returns:
        Reliability bins, and the expected calibration error as ``ece``.
    """
    data = check_and_batchify("calibration", model, ids, batch_size)
    # tokens, summed confidence, right ones; MPS has no float64
    sums = torch.zeros(3, BINS, dtype=torch.float64)
    for log_probs, targets in predictions(model, data, bptt, autocast, progress):
        best = log_probs.max(-1)
        p = best.values.cpu().double().exp()
        right = (best.indices == targets).cpu().double()
        index = (p * BINS).long().clamp(max=BINS - 1)
        sums.index_add_(1, index, torch.stack([torch.ones_like(p), p, right]))
    return Calibration(
        tuple(
            ReliabilityBin(n / BINS, (n + 1) / BINS, int(tokens), p / tokens, right / tokens)
            for n, (tokens, p, right) in enumerate(sums.t().tolist())
            if tokens
        )
    )
