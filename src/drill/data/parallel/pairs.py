"""Pairs of sentences as ids: filtered, in flat arrays, cached on disk.

ParallelText -> filters -> Pairs: ids (N,) and offsets (2P + 1,)
ParallelSplits -> TranslationData: train filtered, valid and test line by line
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drill.data.cache import cache_key, cached, load_array
from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.data.subwords import END, Subwords
from drill.errors import DataError, require
from drill.files import OnProgress

CHUNK = 10_000  # pairs that are encoded at once


@dataclass(frozen=True)
class Filters:
    """Which pairs are worth training on. Lengths count subwords and hold for both sides.

    Attributes:
        minimum: the shortest length; 0 also keeps sides without words.
        maximum: the longest length; None for any.
        ratio: the longer side over the shorter one, at most; None for any.
        deduplicate: keep only the first of equal pairs.
    """

    minimum: int = 1
    maximum: int | None = 256
    ratio: float | None = 4.0
    deduplicate: bool = True

    def __post_init__(self) -> None:
        least = max(1, self.minimum)
        for name, value, wanted in (
            ("minimum", self.minimum, 0),
            ("maximum", self.maximum, least),
            ("ratio", self.ratio, 1),
        ):
            fits = value is None or value >= wanted
            require(fits, "Filters", name, f"at least {wanted}", value)


KEEP_ALL = Filters(minimum=0, maximum=None, ratio=None, deduplicate=False)
"""For texts that are measured: every line has its place."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """P encoded pairs; sentence k is ``ids[offsets[k]:offsets[k + 1]]``.

    Sentences 0 to P - 1 are the sources, P to 2P - 1 their targets, without begin and end.
    """

    ids: NDArray[Any]  # (N,) uint16, or int32 above 65,536 subwords
    offsets: NDArray[np.int64]  # (2P + 1,)
    filtered: Mapping[str, int]  # "pairs" before filtering, and how many each filter dropped

    def __len__(self) -> int:
        return len(self.offsets) // 2

    def source(self, index: int) -> NDArray[Any]:
        """The ids of a source sentence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def target(self, index: int) -> NDArray[Any]:
        """The ids of a target sentence."""
        return self.source(len(self) + index)

    def describe_filtered(self) -> str:
        """``2 of 4 pairs kept; dropped: 1 empty, 1 duplicate``."""
        dropped = [f"{n:,} {name}" for name, n in self.filtered.items() if n and name != "pairs"]
        return (
            f"{len(self):,} of {self.filtered['pairs']:,} pairs kept; "
            f"dropped: {', '.join(dropped) or 'none'}"
        )

    @property
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Subwords of the sources (P,) and of the targets (P,)."""
        lengths = np.diff(self.offsets)
        return lengths[: len(self)], lengths[len(self) :]


def encode_pairs(
    text: ParallelText,
    subwords: Subwords,
    filters: Filters = KEEP_ALL,
    cache: Path | None = None,
    progress: OnProgress | None = None,
) -> Pairs:
    """The pairs that pass the filters, in order.

    Args:
        text: both languages.
        subwords: that split it.
        filters: which pairs to keep; all by default.
        cache: a folder in which pairs are cached by text, subwords and filters, and memory-mapped.
        progress: called with the pairs that are done and the pairs in all.

    Returns:
        The encoded pairs.
    """
    sides = ("\n".join(side) for side in (text.source, text.target))
    settings = json.dumps([len(text), asdict(filters)], sort_keys=True)
    return cached(
        cache,
        cache_key("drill pairs 2", *sides, subwords.fingerprint, settings),
        lambda: _encode(text, subwords, filters, progress),
        _load,
        _save,
    )


def _encode(
    text: ParallelText, subwords: Subwords, filters: Filters, progress: OnProgress | None
) -> Pairs:
    kind = np.uint16 if len(subwords) <= 2**16 else np.int32
    filtered = {"pairs": len(text), "empty": 0, "duplicate": 0, "short": 0, "long": 0, "ratio": 0}
    seen: set[tuple[str, str]] = set()
    sides: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    counts: tuple[list[int], list[int]] = ([], [])
    for start in range(0, len(text), CHUNK):
        chunk: list[tuple[str, str]] = []
        part = slice(start, start + CHUNK)
        for pair in zip(text.source[part], text.target[part], strict=True):
            if filters.minimum > 0 and not (pair[0].strip() and pair[1].strip()):
                filtered["empty"] += 1
            elif filters.deduplicate and pair in seen:
                filtered["duplicate"] += 1
            else:
                chunk.append(pair)
                if filters.deduplicate:
                    seen.add(pair)
        encoded = [subwords.encode_lines([pair[side] for pair in chunk]) for side in (0, 1)]
        passed = []
        for index, (source, target) in enumerate(zip(*encoded, strict=True)):
            fault = _length_fault(len(source), len(target), filters)
            if fault is None:
                passed.append(index)
            else:
                filtered[fault] += 1
        for side in (0, 1):
            sentences = [encoded[side][index] for index in passed]
            counts[side].extend(map(len, sentences))
            sides[side].append(np.fromiter(chain.from_iterable(sentences), dtype=kind))
        if progress is not None:
            progress(min(start + CHUNK, len(text)), len(text))
    offsets = np.zeros(2 * len(counts[0]) + 1, dtype=np.int64)
    np.cumsum([*counts[0], *counts[1]], out=offsets[1:])
    ids = np.concatenate([np.empty(0, dtype=kind), *sides[0], *sides[1]])
    pairs = Pairs(ids, offsets, filtered)
    if len(text) and not len(pairs):
        raise DataError(
            f"no pair is left to train on ({pairs.describe_filtered()}); widen the filters"
        )
    return pairs


def _length_fault(source: int, target: int, filters: Filters) -> str | None:
    shorter, longer = sorted((source, target))
    if shorter < filters.minimum:
        return "short"
    if filters.maximum is not None and longer > filters.maximum:
        return "long"
    if filters.ratio is not None and longer > filters.ratio * max(1, shorter):
        return "ratio"
    return None


def _load(entry: Path) -> Pairs:
    ids, offsets = (load_array(entry / f"{name}.npy") for name in ("ids", "offsets"))
    return Pairs(ids, offsets, json.loads((entry / "report.json").read_bytes()))


def _save(pairs: Pairs, entry: Path) -> None:
    np.save(entry / "ids.npy", pairs.ids)
    np.save(entry / "offsets.npy", pairs.offsets)
    (entry / "report.json").write_text(json.dumps(pairs.filtered))


# -- the splits of a corpus -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TranslationData:
    """All that a translator trains on; pair i of valid and test is line i of their texts."""

    text: ParallelSplits  # without that of train: of millions of pairs it is gigabytes
    subwords: Subwords
    train: Pairs  # that passed the filters
    valid: Pairs
    test: Pairs
    language: str = "de"  # of the targets

    def checksum(self) -> int:
        """Equal where the same ids are trained and evaluated on."""
        checksum = pairs_checksum(self.valid, pairs_checksum(self.train))
        return pairs_checksum(self.test, checksum)


def target_counts(pairs: Pairs, labels: int) -> NDArray[np.int64]:
    """How often each label is a target in ``pairs``, (V,), with one ``<end>`` per pair."""
    first = pairs.offsets[len(pairs)]
    counts = np.bincount(pairs.ids[first:], minlength=labels)
    counts[END] += len(pairs)
    return counts.astype(np.int64)


def pairs_checksum(pairs: Pairs, start: int = 0) -> int:
    """The checksum of these ids, continued from ``start``."""
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
