"""All that a translator trains on: texts, subwords learnt from them, and ids.

ParallelSplits -> Subwords -> TranslationData: train filtered, valid and test line by line

Training reads ids alone, so the training text is freed once it is encoded: of millions of pairs it
is gigabytes, in every process.
"""

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drill.data.download import OnProgress
from drill.data.parallel.pairs import Filters, Pairs, encode_pairs
from drill.data.parallel.parallel_text import ParallelText
from drill.data.parallel.synthetic import ParallelSplits
from drill.data.subwords import END, Subwords
from drill.data.text.catalog import SPLITS


@dataclass(frozen=True, eq=False)
class TranslationData:
    """Pair i of ``valid`` and ``test`` is line i of their texts; ``train`` has passed filters.

    ``language`` is that of the targets.
    """

    text: ParallelSplits  # without that of train
    subwords: Subwords
    train: Pairs
    valid: Pairs
    test: Pairs
    language: str = "de"

    @cached_property
    def checksum(self) -> int:
        """Equal where the same ids are trained and evaluated on."""
        found = pairs_checksum(self.valid, pairs_checksum(self.train))
        return pairs_checksum(self.test, found)

    @cached_property
    def checksums(self) -> dict[str, int]:
        """Of each split, so that one can be known without the others."""
        return {split: pairs_checksum(getattr(self, split)) for split in SPLITS}


def target_counts(pairs: Pairs, labels: int) -> NDArray[np.int64]:
    """How often the targets of ``pairs`` ask for each label, an ``<end>`` a pair counted, (V,)."""
    first = pairs.offsets[len(pairs)]
    counts = np.bincount(pairs.ids[first:], minlength=labels)
    counts[END] += len(pairs)
    return counts.astype(np.int64)


def pairs_checksum(pairs: Pairs, start: int = 0) -> int:
    """Of these ids, after others whose checksum is ``start``."""
    return zlib.crc32(pairs.ids.tobytes(), zlib.crc32(pairs.offsets.tobytes(), start))


def translation_data(
    text: ParallelSplits,
    subwords: Subwords,
    filters: Filters = Filters(),  # noqa: B008 - it is frozen
    cache: Path | None = None,
    progress: OnProgress | None = None,
    *,
    language: str = "de",
) -> TranslationData:
    """Encode all splits; ``cache`` is a folder for the ids. The training text is freed."""
    return TranslationData(
        text._replace(train=ParallelText([], [])),
        subwords,
        encode_pairs(text.train, subwords, filters, cache, progress),
        encode_pairs(text.valid, subwords, cache=cache),
        encode_pairs(text.test, subwords, cache=cache),
        language,
    )
