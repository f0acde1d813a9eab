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
    """What ``corpora.toml`` says about a corpus.

    Attributes:
        about: what it is.
        packages: that make it; it has no files then.
        closed: as of ``Corpus``.
        md5: of train, valid and test; unless given, the files may be any.
        urls: mirrors from which these are downloaded.
        train: of a parallel corpus, files that are joined; and so are ``valid`` and ``test``.
        origin: where to get these.
    """

    about: str
    packages: Sequence[str] = ()
    closed: bool = False
    md5: Sequence[str] = ()
    urls: Sequence[str] = ()
    train: Sequence[str] = ()
    valid: Sequence[str] = ()
    test: Sequence[str] = ()
    origin: str = ""


TABLES = tomllib.loads(resources.files("drill.data").joinpath("corpora.toml").read_text("utf-8"))
CORPORA, PARALLEL_CORPORA = (
    {name: NamedCorpus(**about) for name, about in TABLES[kind].items()}
    for kind in ("text", "parallel")
)
NAMES = (*CORPORA,)  # what ``load_corpus`` takes
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


def find(stem: Path | str, suffixes: Sequence[str] = ("",)) -> Path | None:
    """The first file ``stem`` with one of the suffixes, below a data folder unless absolute."""
    folders = [Path()] if Path(stem).is_absolute() else data_folders()
    paths = (folder / f"{stem}{suffix}" for folder in folders for suffix in suffixes)
    return next((path for path in paths if path.is_file()), None)


def check_corpus(corpus: str) -> None:
    """DataError if ``read_corpus`` would find nothing to read or download; reads nothing."""
    if corpus in CORPORA:
        known = CORPORA[corpus]
        check_packages(f"the corpus {corpus} needs", *known.packages)
        if not (known.packages or known.urls):
            text_files(corpus)
    elif os.path.isdir(corpus):
        text_files(corpus)
    elif not os.path.exists(corpus):
        near = nearest(corpus, NAMES, otherwise="check the path")
        raise DataError(
            f"{corpus!r} is neither a corpus ({', '.join(NAMES)}) nor a folder or file{near}",
            key="data.corpus",
        )


def text_files(corpus: str) -> list[Path]:
    """Train, valid and test of a corpus by its name, or in a folder."""
    if corpus in CORPORA:
        stem, folder = Path(corpus), data_folders()[0] / corpus
        todo = (
            f"{corpus} is {CORPORA[corpus].about}: put train.txt, valid.txt and test.txt there, "
            "packed by xz or gzip or not, or set DRILL_DATA to another folder"
        )
    else:
        stem, folder = Path(corpus).absolute(), Path(corpus)
        todo = "add it, or split a single file"
    paths = []
    for split in SPLITS:
        path = find(stem / split, TEXT_SUFFIXES)
        if path is None:
            raise DataError(f"{folder}: {split}.txt is missing; {todo}")
        paths.append(path)
    return paths
