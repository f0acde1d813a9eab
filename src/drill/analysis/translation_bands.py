"""Accuracy of translations by how often the training text asks for a word or a subword.

Words are what readers see. Subwords are what the output layer chooses among: their bands tell
whether rare labels fare better, whatever words they make up.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drill.analysis.word_accuracy import AccuracyBand, word_accuracy, word_counts
from drill.data import Subwords
from drill.evaluation.words import words


def word_bands(
    hypotheses: Sequence[str],
    references: Sequence[str],
    training: Sequence[str],
    language: str = "de",
) -> list[AccuracyBand]:
    """Bands of words by their count in ``training``, the target side of the training text."""
    written, wanted = (
        [words(line, language) for line in side] for side in (hypotheses, references)
    )
    return word_accuracy(written, wanted, word_counts(training, language))


def subword_bands(
    hypotheses: Sequence[str],
    references: Sequence[str],
    subwords: Subwords,
    counts: NDArray[np.int64],  # (V,)
) -> list[AccuracyBand]:
    """Bands of subwords by ``counts``, which ``drill.data.target_counts`` gives.

    Translations are cut anew: a text has one cut, though a model may have written another.
    """
    written, wanted = (subwords.encode_lines(list(side)) for side in (hypotheses, references))
    return word_accuracy(written, wanted, dict(enumerate(counts.tolist())))
