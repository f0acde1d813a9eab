"""`drill data`: list the corpora, or find, download and count one."""

from typing import Annotated

from typer import Argument, Option, echo

from drill.errors import DataError, SettingsError

DEFAULT = ("en", "de")  # languages of the recipes


def _list() -> None:
    """A line for every corpus: name, state, description."""
    from drill.data.catalog import PARALLEL_CORPORA, TEXT_CORPORA, data_folders

    for name, entry in (TEXT_CORPORA | PARALLEL_CORPORA).items():
        files = f", files {', '.join(entry.train)}.{{en,de}}, from {entry.origin}"
        echo(f"{name:11}  {_state(name):13}  {entry.about}{files if entry.train else ''}")
    folders = " and ".join(map(str, data_folders()))
    echo(f"searched in {folders}; set DRILL_DATA to another folder")


def _state(name: str) -> str:
    """Whether a corpus can be used; no text is read."""
    from drill.data.catalog import PARALLEL_CORPORA, SPLITS, TEXT_CORPORA, check_corpus, find_file
    from drill.data.parallel.corpora import check_parallel_corpus

    try:
        if name in PARALLEL_CORPORA:
            check_parallel_corpus(name, *DEFAULT)
        else:
            check_corpus(name)
    except DataError:
        return "not installed" if (TEXT_CORPORA | PARALLEL_CORPORA)[name].packages else "missing"
    if name in TEXT_CORPORA and TEXT_CORPORA[name].urls:
        here = all(find_file(f"{name}/{split}.txt") for split in SPLITS)
        return "found" if here else "downloadable"
    return "found"


def data(
    corpus: Annotated[
        str | None,
        Argument(metavar="CORPUS", help="A name, a folder or a file; lists all if left out."),
    ] = None,
    min_count: Annotated[int, Option(min=1, help="Language models: rarer words become <unk>.")] = 1,
    source: Annotated[str | None, Option(help="Pairs: source language, en by default.")] = None,
    target: Annotated[str | None, Option(help="Pairs: target language, de by default.")] = None,
) -> None:
    """Find or download a corpus and count it, or list all.

    A folder of pairs is read as such with --source and --target.
    """
    if corpus is None:
        _list()
        return
    from drill.data import read_corpus, read_parallel_corpus
    from drill.data.catalog import PARALLEL_NAMES

    if corpus in PARALLEL_NAMES or source is not None or target is not None:
        if min_count > 1:
            raise SettingsError(f"--min-count: {corpus} uses subwords; leave it out")
        first, second = source or DEFAULT[0], target or DEFAULT[1]
        text = read_parallel_corpus(corpus, source=first, target=second)
        sizes = "  ".join(f"{split} {len(pairs):,}" for split, pairs in text._asdict().items())
        words = "  ".join(
            f"{side} {sum(len(line.split()) for line in getattr(text.train, side)):,}"
            for side in ("source", "target")
        )
        echo(f"{corpus}: {first} to {second}, pairs {sizes}; training words {words}")
        return
    from drill.data.text.corpora import share_of_unknown

    corpus_text, vocabulary = read_corpus(corpus, min_count=min_count)
    ids = corpus_text.encode(vocabulary)
    counts = "  ".join(f"{name} {len(getattr(ids, name)):,}" for name in ("train", "valid", "test"))
    echo(f"{corpus_text.name}: {len(vocabulary):,} words; tokens {counts}")
    if (remark := share_of_unknown(corpus_text, vocabulary, ids)) is not None:
        echo(remark)
