"""English and German sentences about numbers, dates, amounts and times: pairs without a download.

The packages num2words and babel write the values in both languages, templates the sentences around
them. An English sentence has one German sentence, so a model can learn to be right every time; the
values are so many that the sentences it is tested on are new to it.
"""

import hashlib
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from drill.data.parallel.parallel_text import ParallelText
from drill.data.parallel.synthetic_sentences import KINDS, Pair, Writer, sentence
from drill.errors import DataError

SPLITS = ("train", "valid", "test")


class ParallelSplits(NamedTuple):
    train: ParallelText
    valid: ParallelText
    test: ParallelText


def numbers_and_dates_corpus(
    train: int = 20_000, valid: int = 500, test: int = 500, seed: int = 1
) -> ParallelSplits:
    """The embedded corpus; each split is what ``generate_pairs`` gives for it."""
    wanted = dict(zip(SPLITS, (train, valid, test), strict=True))
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for split, count in wanted.items():
        _check(count, split)
    for split, pair in _drawn(seed):
        if len(found[split]) < wanted[split]:
            found[split].append(pair)
        elif all(len(found[each]) == wanted[each] for each in SPLITS):
            break
    return ParallelSplits(*(ParallelText.from_pairs(found[split]) for split in SPLITS))


def generate_pairs(count: int, seed: int = 1, split: str = "train") -> list[Pair]:
    """``count`` different pairs (English, German); a larger count goes on where a smaller ends.

    What a sentence says decides its split, in 8, 1 and 1 of 10 cases: no sentence of one split is
    in another, whatever the seeds.
    """
    _check(count, split)
    found: list[Pair] = []
    for drawn, pair in _drawn(seed):
        if drawn == split:
            found.append(pair)
            if len(found) == count:
                break
    return found


def _check(count: int, split: str) -> None:
    if split not in SPLITS:
        raise DataError(f"generate_pairs: split is one of {', '.join(SPLITS)}, not {split!r}")
    if count < 1:
        raise DataError(f"generate_pairs: the number of pairs is at least 1, not {count}")


def _drawn(seed: int) -> Iterator[tuple[str, Pair]]:
    """Different pairs without end, each with its split."""
    random, write = Random(seed), Writer()
    seen: set[str] = set()
    while True:
        pair = sentence(random.choice(KINDS), random, write)
        if pair[0] not in seen:
            seen.add(pair[0])
            yield _split_of(pair[0]), pair


def _split_of(english: str) -> str:
    tenth = hashlib.sha256(english.encode("utf-8")).digest()[0] * 10 // 256
    return SPLITS[2] if tenth == 9 else SPLITS[1] if tenth == 8 else SPLITS[0]
