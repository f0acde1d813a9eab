"""`drill data`: list the corpora, or find, download and count one."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from drill.errors import DataError, SettingsError, nearest

DEFAULT = ("en", "de")  # languages of the recipes


def listed() -> list[str]:
    """A line for every corpus: name, state, description."""
    from drill.data.text.catalog import CORPORA, PARALLEL_CORPORA

    lines = []
    for name, known in (CORPORA | PARALLEL_CORPORA).items():
        files = f", files {', '.join(known.train)}.{{en,de}}, from {known.origin}"
        about = known.about + (files if known.train else "")
        lines.append(f"{name:11}  {_state(name):13}  {about}")
    return lines


def _state(name: str) -> str:
    """Whether a corpus can be used; no text is read."""
    from drill.data.parallel.corpora import check_parallel_corpus
    from drill.data.text.catalog import CORPORA, PARALLEL_CORPORA, SPLITS, check_corpus, find

    try:
        if name in PARALLEL_CORPORA:
            check_parallel_corpus(name, *DEFAULT)
        else:
            check_corpus(name)
    except DataError:
        return "not installed" if (CORPORA | PARALLEL_CORPORA)[name].packages else "missing"
    if name in CORPORA and CORPORA[name].urls:
        here = all(find(f"{name}/{split}.txt") for split in SPLITS)
        return "found" if here else "downloadable"
    return "found"


def languages_in(folder: Path, source: str | None, target: str | None) -> tuple[str, str] | None:
    """The languages of a folder of pairs, from its file names (``train.en.gz``); None for a text.

    ``source`` and ``target`` are needed if a folder has more than two.
    """
    from drill.data.parallel.corpora import COMPRESSED

    texts = any((folder / name).is_file() for name in ("train", "train.txt"))
    files = [path for path in folder.glob("train.*") if path.is_file()]
    unpacked = {path.stem if path.suffix in COMPRESSED else path.name for path in files}
    found = sorted({name.removeprefix("train.") for name in unpacked} - {"train", "txt"})
    if source is not None or target is not None:
        if source is None or target is None:
            raise SettingsError("--source and --target: name both languages of the pairs")
        return source, target
    if texts or len(found) < 2:
        return None
    if len(found) > 2:
        raise DataError(
            f"{folder}: has train in {', '.join(found)}; choose two with --source and --target"
        )
    return DEFAULT if set(found) == set(DEFAULT) else (found[0], found[1])


def data(
    corpus: Annotated[
        str | None,
        Argument(metavar="CORPUS", help="A name, a folder or a file; lists all if left out."),
    ] = None,
    min_count: Annotated[int, Option(min=1, help="Language models: rarer words become <unk>.")] = 1,
    source: Annotated[
        str | None, Option(help="Translators: source language; by file names.")
    ] = None,
    target: Annotated[str | None, Option(help="Translators: target language.")] = None,
) -> None:
    """Find or download a corpus and count it, or list all."""
    from drill.data.parallel.corpora import PARALLEL_NAMES
    from drill.data.text.catalog import NAMES, data_folders

    if corpus is None:
        for line in listed():
            echo(line)
        folders = " and ".join(map(str, data_folders()))
        echo(f"searched in {folders}; set DRILL_DATA to another folder")
        return
    from drill.data import read_corpus, read_parallel_corpus

    pairs = None
    if corpus not in (*NAMES, *PARALLEL_NAMES) and os.path.isdir(corpus):
        pairs = languages_in(Path(corpus), source, target)
    elif source is not None or target is not None:
        raise SettingsError(
            f"--source and --target: {corpus} is not a folder of pairs; leave them out"
        )
    if corpus in PARALLEL_NAMES or pairs is not None:
        if min_count > 1:
            raise SettingsError(f"--min-count: {corpus} uses subwords; leave it out")
        first, second = pairs or DEFAULT
        text = read_parallel_corpus(corpus, source=first, target=second)
        of = f"{first} to {second}, " if pairs else ""
        sizes = "  ".join(f"{split} {len(each):,}" for split, each in text._asdict().items())
        words = "  ".join(
            f"{side} {sum(len(line.split()) for line in getattr(text.train, side)):,}"
            for side in ("source", "target")
        )
        echo(f"{corpus}: {of}pairs {sizes}; training words {words}")
        return
    if corpus not in NAMES and not os.path.exists(corpus):  # Path.exists() fails on odd names
        names = [*NAMES, *PARALLEL_NAMES]
        near = nearest(corpus, names, otherwise="check the path")
        raise DataError(
            f"is neither a corpus ({', '.join(names)}) nor a folder or file{near}", key=corpus
        )
    from drill.training.run.summary import share_of_unknown

    found, vocabulary = read_corpus(corpus, min_count=min_count)
    ids = found.encode(vocabulary)
    counts = "  ".join(f"{name} {len(getattr(ids, name)):,}" for name in ("train", "valid", "test"))
    echo(f"{found.name}: {len(vocabulary):,} words; tokens {counts}")
    if found.closed:
        return
    if (remark := share_of_unknown(found, vocabulary, ids)) is not None:
        echo(remark)
