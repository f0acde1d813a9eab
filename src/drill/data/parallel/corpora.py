"""Parallel texts in three splits: corpora by name, the generated one, and pairs of your own."""

from collections.abc import Sequence
from pathlib import Path

from drill.data.catalog import PARALLEL_CORPORA, SPLITS, data_folders, find
from drill.data.optional_packages import check_packages
from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.data.parallel.synthetic import numbers_and_dates_corpus
from drill.errors import DataError, check_value, nearest

COMPRESSED = ("", ".gz", ".xz")
GENERATED = "numbers"
PARALLEL_NAMES = (*PARALLEL_CORPORA,)


def read_parallel_corpus(
    corpus: str = GENERATED,
    *,
    source: str = "en",
    target: str = "de",
    pairs: int | None = None,
    splits: Sequence[str] = SPLITS,
) -> ParallelSplits:
    """Train, valid and test, from a name or from a folder of your own.

    Args:
        corpus: "multi30k", "europarl", "wmt14", "numbers" (generated) or a folder with
            ``train.en``, ``train.de``, ``valid.en``, ..., plain or packed as ``.gz`` or ``.xz``. A
            name goes before a path.
        source: source language.
        target: target language.
        pairs: number of training pairs: the first ones; of "numbers", as many are generated.
        splits: which to read; the others are empty.

    Returns:
        The three splits.
    """
    check_value(pairs is None or pairs >= 1, "data.pairs", "at least 1", pairs, DataError)
    if corpus == GENERATED:
        if {source, target} != {"en", "de"}:
            raise DataError(f"{corpus}: has the languages en and de, not {source} and {target}")
        made = numbers_and_dates_corpus(20_000 if pairs is None else pairs)
        swapped = (ParallelText(each.target, each.source) for each in made)
        return made if source == "en" else ParallelSplits(*swapped)
    found = dict.fromkeys(SPLITS, ParallelText([], []))
    for split in splits:
        for files in _files(split, corpus, source, target):
            found[split] += ParallelText.from_files(*files)
    train = found["train"]
    found["train"] = ParallelText(train.source[:pairs], train.target[:pairs])
    return ParallelSplits(**found)


def check_parallel_corpus(corpus: str, source: str, target: str) -> None:
    """DataError where ``read_parallel_corpus`` would miss a file or package; nothing is read."""
    if corpus == GENERATED:
        check_packages(f"{corpus} needs", *PARALLEL_CORPORA[corpus].packages)
    else:
        for split in SPLITS:
            _files(split, corpus, source, target)


def _files(split: str, corpus: str, source: str, target: str) -> list[tuple[Path, Path]]:
    """The source and target file of each part of a split."""
    stems: Sequence[str]
    known = PARALLEL_CORPORA.get(corpus)
    if known is not None:
        stems, origin = getattr(known, split), f"; get it from {known.origin} or set DRILL_DATA"
    elif Path(corpus).is_dir():
        stems, origin = [str(Path(corpus).resolve() / split)], ""
    else:
        files = f"name a folder with train.{source}, train.{target}, valid.{source}, ..."
        near = nearest(corpus, PARALLEL_NAMES, otherwise=files)
        names = ", ".join(PARALLEL_NAMES)
        raise DataError(
            f"{corpus!r} is neither a parallel corpus ({names}) nor a folder{near}",
            key="data.corpus",
        )

    def found(name: str) -> Path:
        path = find(name, COMPRESSED)
        if path is None:
            raise DataError(
                f"{corpus}: {data_folders()[0] / name} is missing; put it there (.gz and .xz are "
                f"read too){origin}"
            )
        return path

    return [(found(f"{stem}.{source}"), found(f"{stem}.{target}")) for stem in stems]
