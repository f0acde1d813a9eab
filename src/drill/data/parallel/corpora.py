"""Parallel texts in three splits: corpora by name, the generated one, and pairs of your own."""

from collections.abc import Sequence
from pathlib import Path

from drill.data.catalog import PARALLEL_CORPORA, PARALLEL_NAMES, SPLITS, data_folders, find_file
from drill.data.optional_packages import check_packages
from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
from drill.data.parallel.synthetic import numbers_and_dates_corpus
from drill.errors import DataError, check_value, nearest

COMPRESSED = ("", ".gz", ".xz")
GENERATED = "numbers"


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
            ``train.en``, ``train.de``, ``valid.en``, ..., plain or packed as ``.gz`` or ``.xz``.
            Where a name is that of a folder too, ``./name`` is the folder.
        source: source language.
        target: target language.
        pairs: number of training pairs, the first ones; all by default. For "numbers" this many
            are generated, 20,000 by default.
        splits: which to read; the others are empty.

    Returns:
        The three splits.
    """
    check_value(pairs is None or pairs >= 1, "data.pairs", "at least 1", pairs, DataError)
    texts = dict.fromkeys(SPLITS, ParallelText([], []))
    if corpus == GENERATED:
        if {source, target} != {"en", "de"}:
            raise DataError(f"{corpus}: has the languages en and de, not {source} and {target}")
        train = (pairs or 20_000) if "train" in splits else 1  # other splits are the same
        generated = numbers_and_dates_corpus(train)._asdict()
        texts |= {split: generated[split] for split in splits}
        if source == "de":
            texts = {split: ParallelText(text.target, text.source) for split, text in texts.items()}
        return ParallelSplits(**texts)
    for split in splits:
        for files in _files(split, corpus, source, target):
            texts[split] += ParallelText.from_files(*files)
    train_text = texts["train"]
    texts["train"] = ParallelText(train_text.source[:pairs], train_text.target[:pairs])
    return ParallelSplits(**texts)


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
    entry = PARALLEL_CORPORA.get(corpus)
    if entry is not None:
        stems = getattr(entry, split)
        hint = f"get it from {entry.origin}, or set DRILL_DATA to another folder"
    elif Path(corpus).is_dir():
        stems, hint = [str(Path(corpus).resolve() / split)], None
    else:
        files = f"name a folder with train.{source}, train.{target}, valid.{source}, ..."
        near = nearest(corpus, PARALLEL_NAMES, otherwise=files)
        names = ", ".join(PARALLEL_NAMES)
        raise DataError(
            f"{corpus!r} is neither a parallel corpus ({names}) nor a folder{near}",
            key="data.corpus",
        )

    def located(name: str) -> Path:
        path = find_file(name, COMPRESSED)
        if path is None:
            fault = f"{data_folders()[0] / name} is missing, packed (.gz, .xz) or not"
            raise DataError(fault, key=corpus, hint=hint)
        return path

    return [(located(f"{stem}.{source}"), located(f"{stem}.{target}")) for stem in stems]
