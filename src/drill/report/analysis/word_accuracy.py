"""Accuracy of translations by word frequency.

Words are grouped into bands by their count in the target side of the training text. In each band

    precision = matched / written    recall = matched / wanted    F1 = 2 P R / (P + R)

``written`` and ``wanted`` are occurrences in the translations and in the references. ``matched`` is
summed over sentences: min(m, n) for a word that is written m times and wanted n times. The order
of words does not matter.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from drill.data import Subwords
from drill.data.parallel.moses_words import words
from drill.language_modeling.evaluation.frequency_bands import CountRange, band_ends

WORD_EDGES = (1, 2, 5, 10, 100, 1000)
"""Training counts at which bands begin; most words of a text are rare."""

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True)
class AccuracyBand(CountRange):
    """How many words of a band translations get right."""

    types: int  # distinct words of the band in the references
    wanted: int  # their occurrences there
    written: int  # occurrences of the band's words in the translations
    matched: int  # those that both share, sentence by sentence

    @property
    def precision(self) -> float:
        """NaN where nothing is written, as the others where there is nothing to divide by."""
        return self.matched / self.written if self.written else math.nan

    @property
    def recall(self) -> float:
        return self.matched / self.wanted if self.wanted else math.nan

    @property
    def f1(self) -> float:
        both = self.written + self.wanted
        return 2 * self.matched / both if both else math.nan


def word_accuracy(
    hypotheses: Sequence[Sequence[Label]],
    references: Sequence[Sequence[Label]],
    counts: Mapping[Label, int],
    *,
    edges: Sequence[int] = WORD_EDGES,
) -> list[AccuracyBand]:
    """One band from each edge to the next, after one for words never seen in training.

    Sentences are lists of words, or of ids; a word that ``counts`` lacks was never seen.
    """
    ends = band_ends(edges)
    wanted, written = (Counter(chain.from_iterable(side)) for side in (references, hypotheses))
    matched = matched_words(hypotheses, references)
    by_band: list[list[Label]] = [[] for _ in ends]
    for word in wanted.keys() | written.keys():
        by_band[bisect_right(edges, counts.get(word, 0))].append(word)
    bands = []
    for end, words_of in zip(ends, by_band, strict=True):
        types = sum(word in wanted for word in words_of)
        sums = (sum(counter[word] for word in words_of) for counter in (wanted, written, matched))
        bands.append(AccuracyBand(*end, types, *sums))
    return bands


def matched_words(
    hypotheses: Sequence[Sequence[Label]], references: Sequence[Sequence[Label]]
) -> Counter[Label]:
    """How many of each word of the references the translations have, line by line."""
    matched: Counter[Label] = Counter()
    for written, wanted in zip(hypotheses, references, strict=True):
        matched.update(Counter(written) & Counter(wanted))
    return matched


def word_counts(lines: Iterable[str], language: str = "de") -> Counter[str]:
    """How often each word occurs in a text, cut by ``words``."""
    return Counter(word for line in lines for word in words(line, language))


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
    """Bands of subwords by ``counts``, from ``drill.data.parallel.pairs.target_counts``.

    Translations are tokenized again: a model may have generated another segmentation.
    """
    written, wanted = (subwords.encode_lines(list(side)) for side in (hypotheses, references))
    return word_accuracy(written, wanted, dict(enumerate(counts.tolist())))
