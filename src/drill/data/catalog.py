"""The corpora that have a name: what is known about them and where they are. Reads no text."""

import os
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from drill.data.optional_packages import check_packages
from drill.errors import DataError, nearest
from drill.files import user_folder

SPLITS = ("train", "valid", "test")
TEXT_SUFFIXES = (".txt", "", ".txt.xz", ".txt.gz")


@dataclass(frozen=True)
class NamedCorpus:
    """What ``corpora.toml`` says about a corpus."""

    about: str  # in one line
    packages: Sequence[str] = ()  # that contain or generate the text; it has no files then
    closed: bool = False  # see ``Corpus``
    md5: Sequence[str] = ()  # of train, valid and test; without them any file is accepted
    urls: Sequence[str] = ()  # mirrors
    # Of a parallel corpus:
    train: Sequence[str] = ()  # the files that are joined
    valid: Sequence[str] = ()
    test: Sequence[str] = ()
    origin: str = ""  # where to get the files


TABLES = tomllib.loads(resources.files("drill.data").joinpath("corpora.toml").read_text("utf-8"))
TEXT_CORPORA, PARALLEL_CORPORA = (
    {name: NamedCorpus(**about) for name, about in TABLES[kind].items()}
    for kind in ("text", "parallel")
)
TEXT_NAMES = (*TEXT_CORPORA,)  # what ``load_corpus`` takes
PARALLEL_NAMES = (*PARALLEL_CORPORA,)  # what ``read_parallel_corpus`` takes
BIBLE = "bible"  # the World English Bible


def data_folders() -> list[Path]:
    """Where corpora are looked for; the first is where they are downloaded to.

    ``DRILL_DATA`` where it is set, then ``XDG_DATA_HOME/drill`` (``~/.local/share/drill``).
    """
    chosen = os.environ.get("DRILL_DATA")
    if not chosen:
        return [user_folder("XDG_DATA_HOME", ".local/share")]
    with suppress(DataError):  # a user without a home
        return [Path(chosen), user_folder("XDG_DATA_HOME", ".local/share")]
    return [Path(chosen)]


def find_file(stem: Path | str, suffixes: Sequence[str] = ("",)) -> Path | None:
    """The first file ``stem`` with one of the suffixes, below a data folder unless absolute."""
    folders = [Path()] if Path(stem).is_absolute() else data_folders()
    paths = (folder / f"{stem}{suffix}" for folder in folders for suffix in suffixes)
    return next((path for path in paths if path.is_file()), None)


def check_corpus(corpus: str) -> None:
    """DataError if ``read_corpus`` would find nothing to read or download; reads nothing."""
    if corpus in TEXT_CORPORA:
        entry = TEXT_CORPORA[corpus]
        check_packages(f"the corpus {corpus} needs", *entry.packages)
        if not (entry.packages or entry.urls):
            text_files(corpus)
    elif os.path.isdir(corpus):
        text_files(corpus)
    elif not os.path.exists(corpus):
        hint = nearest(corpus, TEXT_NAMES, otherwise="check the path")
        raise DataError(
            f"{corpus!r} is neither a corpus ({', '.join(TEXT_NAMES)}) nor a folder or file{hint}",
            key="data.corpus",
        )


def text_files(corpus: str) -> list[Path]:
    """Train, valid and test of a corpus by its name, or in a folder."""
    if corpus in TEXT_CORPORA:
        stem, folder = Path(corpus), data_folders()[0] / corpus
        todo = (
            f"{corpus} is {TEXT_CORPORA[corpus].about}: put train.txt, valid.txt and test.txt "
            "there, packed by xz or gzip or not, or set DRILL_DATA to another folder"
        )
    else:
        stem, folder = Path(corpus).absolute(), Path(corpus)
        todo = "add it, or split a single file"
    paths = []
    for split in SPLITS:
        path = find_file(stem / split, TEXT_SUFFIXES)
        if path is None:
            raise DataError(f"{folder}: {split}.txt is missing; {todo}")
        paths.append(path)
    return paths
