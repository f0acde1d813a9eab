"""Parallel texts in three splits: corpora by name, the generated one, and pairs of your own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.data.parallel.synthetic import numbers_and_dates_corpus
from drill.data.text.catalog import SPLITS, TABLES, data_folders
from drill.errors import DataError, check_value, nearest

COMPRESSED = ("", ".gz", ".xz")
GENERATED = "numbers"


class Parts(NamedTuple):
    """The files of a parallel corpus, and where to get them."""

    train: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    origin: str


PARALLEL_CORPORA = {name: Parts(**table) for name, table in TABLES["parallel"].items()}
PARALLEL_NAMES = (*PARALLEL_CORPORA, GENERATED)


def read_parallel_corpus(
    corpus: str = GENERATED,
    *,
    source: str = "en",
    target: str = "de",
    pairs: int | None = None,
) -> ParallelSplits:
    """Train, valid and test, from a name or from a folder of your own.

    Args:
        corpus: "multi30k", "europarl", "wmt14", "numbers" (generated) or a folder with
            ``train.en``, ``train.de``, ``valid.en``, ..., plain or packed as ``.gz`` or ``.xz``. A
            name goes before a path.
        source: source language.
        target: target language.
        pairs: the first so many pairs for training; of "numbers", so many are generated.

    Returns:
        The three splits.
    """
    if corpus == GENERATED:  # all at once
        return _generated(source, target, pairs)
    return ParallelSplits(
        *(
            read_parallel_split(split, corpus, source=source, target=target, pairs=pairs)
            for split in SPLITS
        )
    )


def check_parallel_corpus(corpus: str, source: str, target: str) -> None:
    """DataError where ``read_parallel_corpus`` would miss a file; nothing is read."""
    if corpus != GENERATED:
        for split in SPLITS:
            _files(split, corpus, source, target)


def read_parallel_split(
    split: str,
    corpus: str = GENERATED,
    *,
    source: str = "en",
    target: str = "de",
    pairs: int | None = None,
) -> ParallelText:
    """``train``, ``valid`` or ``test`` of ``read_parallel_corpus``, without reading the others."""
    fits = pairs is None or pairs >= 1
    check_value(fits, "data.pairs", "at least 1", pairs, DataError)
    if corpus == GENERATED:
        return _generated(source, target, pairs)[SPLITS.index(split)]
    texts = [ParallelText.from_files(*files) for files in _files(split, corpus, source, target)]
    found = sum(texts[1:], start=texts[0])
    if split == "train" and pairs is not None:
        return ParallelText(found.source[:pairs], found.target[:pairs])
    return found


def _generated(source: str, target: str, pairs: int | None) -> ParallelSplits:
    if (source, target) not in (("en", "de"), ("de", "en")):
        raise DataError(f"{GENERATED}: has the languages en and de, not {source} and {target}")
    made = numbers_and_dates_corpus(20_000 if pairs is None else pairs)
    if source == "en":
        return made
    return ParallelSplits(*(ParallelText(each.target, each.source) for each in made))


def _files(split: str, corpus: str, source: str, target: str) -> list[tuple[Path, Path]]:
    """Of each part of a split the file of either language."""
    stems: Sequence[str]
    if corpus in PARALLEL_CORPORA:
        stems = getattr(PARALLEL_CORPORA[corpus], split)
    elif Path(corpus).is_dir():
        stems = [str(Path(corpus).resolve() / split)]
    else:
        files = f"name a folder with train.{source}, train.{target}, valid.{source}, ..."
        near = nearest(corpus, PARALLEL_NAMES, otherwise=files)
        names = ", ".join(PARALLEL_NAMES)
        raise DataError(
            f"{corpus!r} is neither a parallel corpus ({names}) nor a folder{near}",
            key="data.corpus",
        )
    return [
        (_found(corpus, f"{stem}.{source}"), _found(corpus, f"{stem}.{target}")) for stem in stems
    ]


def _found(corpus: str, name: str) -> Path:
    """The file of this name, packed or not; a name that is no path from the root is looked for."""
    folders = [Path()] if Path(name).is_absolute() else data_folders()
    paths = [folder / f"{name}{packed}" for folder in folders for packed in COMPRESSED]
    for path in paths:
        if path.is_file():
            return path
    known = PARALLEL_CORPORA.get(corpus)
    origin = "" if known is None else f"; get it from {known.origin} or set DRILL_DATA"
    raise DataError(
        f"{corpus}: {paths[0]} is missing; put it there (.gz and .xz are read too){origin}"
    )
