"""Words or subwords and their ids."""

import codecs
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drill.data.subwords import END, Subwords
from drill.errors import DataError, check_value
from drill.files import atomic_write, lines_of, read_json

EOS = "<eos>"  # ends every line
UNK = "<unk>"  # stands for every word that is not in the vocabulary
FAULTS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)  # of a damaged file
LINES_AT_ONCE = 4096  # ids of a long text as lists of Python would fill the memory


class Vocabulary:
    """V words; the id of a word is its index in ``words``, the order of first appearance.

    A line is split at white space and ends in ``<eos>``, so an empty line is a lone ``<eos>``.

        vocabulary = Vocabulary.over_splits(train, valid, test)  # closed: every word is in it
        vocabulary = Vocabulary.from_training(train, min_count=2)  # the rest is <unk>

    Args:
        words: in the order of their ids, ``<eos>`` among them.
        counts: (V,), how often each word occurs in the training text.
        descriptions: texts about words, such as dictionary entries, from which label vectors may be
            made.
        held_out: words that were taken out of the training text, see ``hold_out``.
    """

    unit = "words"
    token_bytes: NDArray[np.int64] | None = None
    """Bytes of every word, (V,), in a vocabulary that writes a text exactly."""

    def __init__(
        self,
        words: Sequence[str],
        counts: Sequence[int],
        descriptions: Mapping[str, str] | None = None,
        held_out: Sequence[str] = (),
    ) -> None:
        self.words = tuple(words)
        self.counts: NDArray[np.int64] = np.array(counts, dtype=np.int64)
        self.descriptions, self.held_out = dict(descriptions or {}), tuple(held_out)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if not len(self.ids) == len(self.words) == len(self.counts) or EOS not in self.ids:
            raise DataError(f"Vocabulary: words differ, {EOS} is one, and each has a count")

    @classmethod
    def over_splits(cls, train: Iterable[str], *others: Iterable[str]) -> "Vocabulary":
        """Every word of every split, in the order given; counts are those of ``train``.

        This is how the standard corpora are read. It lets no word be unknown, which is fair only
        where the corpus itself has put ``<unk>`` for rare words.
        """
        counted = Counter(tokens(train))
        words = dict.fromkeys(counted)
        for lines in others:
            words.update(dict.fromkeys(tokens(lines)))
        words.setdefault(EOS)
        return cls([*words], [counted[word] for word in words])

    @classmethod
    def from_training(
        cls, train: Iterable[str], min_count: int = 1, max_vocab_size: int | None = None
    ) -> "Vocabulary":
        """The words of the training text that occur ``min_count`` times; others are ``<unk>``.

        Of these the most frequent ones: ``max_vocab_size`` with ``<eos>`` and ``<unk>``.
        """
        check_value(min_count >= 1, "data.min_count", "at least 1", min_count, DataError)
        fits = max_vocab_size is None or max_vocab_size >= 3
        wanted = f"at least 3 ({EOS}, {UNK} and a word)"
        check_value(fits, "data.max_vocab_size", wanted, max_vocab_size, DataError)
        counted = Counter(tokens(train))
        counted.setdefault(UNK, 0)
        counted.setdefault(EOS, 0)
        # most_common keeps the order of first appearance among equals
        frequent = [word for word, count in counted.most_common() if count >= min_count]
        frequent = [word for word in frequent if word not in (EOS, UNK)]
        room = None if max_vocab_size is None else max_vocab_size - 2
        known = {EOS, UNK, *frequent[:room]}
        counted[UNK] += sum(count for word, count in counted.items() if word not in known)
        words = [word for word in counted if word in known]
        return cls(words, [counted[word] for word in words])

    def hold_out(self, number: int, low: int, high: int, seed: int) -> "Vocabulary":
        """Without ``number`` random words that occur ``low`` to ``high`` times in training.

        They become ``<unk>`` wherever a text is encoded, and are listed in ``held_out``.
        """
        band = [
            word
            for word, count in zip(self.words, self.counts, strict=True)
            if low <= count <= high and word not in (EOS, UNK)
        ]
        most = f"at most {len(band):,}, the words that occur {low} to {high} times"
        check_value(0 <= number <= len(band), "data.held_out", most, number, DataError)
        drawn = np.random.default_rng(seed).choice(len(band), number, replace=False)
        chosen = [band[index] for index in sorted(drawn)]
        counted = Counter(dict(zip(self.words, self.counts.tolist(), strict=True)))
        counted[UNK] += sum(counted.pop(word) for word in chosen)
        return Vocabulary([*counted], [*counted.values()], held_out=chosen)

    def extended(self, words: Sequence[str], descriptions: Mapping[str, str]) -> "Vocabulary":
        """With ``words`` after its own, which training has not seen, and texts about them."""
        for word in words:
            if word in self:
                raise DataError(f"{word!r} is in the vocabulary already")
        counts = [*self.counts.tolist(), *[0] * len(words)]
        held_out = [word for word in self.held_out if word not in words]
        all_descriptions = {**self.descriptions, **descriptions}
        return Vocabulary([*self.words, *words], counts, all_descriptions, held_out)

    def extends(self, other: "Vocabulary") -> bool:
        """Whether this is ``other``, or ``other`` with further words."""
        if self == other:
            return True
        rest = self.counts[len(other) :]
        return self.words[: len(other)] == other.words and len(rest) > 0 and not rest.any()

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self.words == other.words and np.array_equal(self.counts, other.counts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} {self.unit})"

    @property
    def fingerprint(self) -> str:
        """sha256 of the words in order: equal where ``encode`` gives equal ids."""
        return hashlib.sha256("\n".join(self.words).encode("utf-8")).hexdigest()

    def encode(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Ids (N,) of all words of the lines, with ``<eos>`` after each line."""
        if isinstance(lines, str):
            raise TypeError("Vocabulary: encode takes lines, not one string; pass [text]")
        unknown = self.ids.get(UNK)
        if unknown is not None:
            return np.fromiter((self.ids.get(word, unknown) for word in tokens(lines)), np.int32)
        try:
            return np.fromiter((self.ids[word] for word in tokens(lines)), np.int32)
        except KeyError as error:
            raise DataError(
                f"Vocabulary: {error.args[0]!r} is not among the {len(self)} words and there is "
                f"no {UNK}; build the vocabulary over this text too, or with from_training"
            ) from None

    def encode_text(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Ids (N,) of a whole text, of which the first is not predicted."""
        return self.encode(lines)

    def split(self, line: str) -> tuple[str, ...]:
        """What ``encode`` reads of a line: its words, then ``<eos>``."""
        return (*line.split(), EOS)

    def unknown_words(self, line: str) -> list[str]:
        """The words of a line that are read as ``<unk>``, in order; a literal ``<unk>`` counts."""
        return [word for word in line.split() if word == UNK or word not in self]

    def display(self, index: int) -> str:
        """The label ``index`` for people: the word."""
        return self.words[index]

    def writer(self, last: int) -> Callable[[int], str]:
        """A function from one id after another, the first after ``last``, to their text."""
        previous = self.words[last]

        def write(index: int) -> str:
            nonlocal previous
            earlier, previous = previous, self.words[index]
            if previous == EOS:
                return "\n"
            return previous if earlier == EOS else f" {previous}"

        return write

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The lines that ``ids`` write, from the start of a line on; the last may have no end."""
        ids = list(ids)
        for index in ids:
            if not 0 <= index < len(self):
                raise DataError(f"Vocabulary: id must be in 0 to {len(self) - 1}, got {index}")
        return lines_of("".join(map(self.writer(self.ids[EOS]), ids)))

    def save(self, path: Path | str) -> None:
        """Write JSON atomically: an object with ``words``, ``counts`` and what else there is."""
        content: dict[str, Any] = {"words": self.words, "counts": self.counts.tolist()}
        optional = {"descriptions": self.descriptions, "held_out": self.held_out}
        content |= {key: value for key, value in optional.items() if value}
        text = json.dumps(content, ensure_ascii=False, indent=0)
        atomic_write(Path(path), text.encode("utf-8"))


def tokens(lines: Iterable[str]) -> Iterator[str]:
    """The words of each line, then ``<eos>``."""
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if EOS in words:
            raise DataError(
                f"line {number} holds the word {EOS}, which is reserved for the end of a line; "
                "remove or rename it"
            )
        yield from words
        yield EOS


# -- subwords --------------------------------------------------------------------------------------


class SubwordVocabulary(Vocabulary):
    """V pieces of ``subwords``: byte-level BPE with counts and bytes of its pieces.

    A line is its pieces and ``<eos>``, which stands for ``\\n``. Nothing is unknown, and the text
    comes back exactly, so a loss can be divided by the bytes of the text.

    Args:
        subwords: the pieces.
        counts: (V,), how often each piece occurs in the training text.

    Attributes:
        bytes_of: the bytes of every piece, ``\\n`` of ``<eos>``, none of the other special ids.
        token_bytes: (V,), how many they are.
    """

    unit = "subwords"

    def __init__(self, subwords: Subwords, counts: Sequence[int]) -> None:
        words = [*map(subwords.piece, range(len(subwords)))]
        words[END] = EOS
        super().__init__(words, counts)
        self.subwords = subwords
        self.bytes_of = [*map(subwords.piece_bytes, range(len(subwords)))]
        self.bytes_of[END] = b"\n"
        self.token_bytes = np.array([len(piece) for piece in self.bytes_of])

    def __contains__(self, word: object) -> bool:
        return word != UNK  # every word can be written in pieces

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubwordVocabulary):
            return False
        return self.subwords == other.subwords and np.array_equal(self.counts, other.counts)

    @property
    def fingerprint(self) -> str:
        return self.subwords.fingerprint

    def encode(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Ids (N,) of all pieces, with ``<eos>`` after each line."""
        parts = [np.zeros(0, dtype=np.int32)]
        rest = iter(lines)
        while block := list(islice(rest, LINES_AT_ONCE)):
            rows = self.subwords.encode_lines(block)
            parts.append(np.fromiter((i for line in rows for i in (*line, END)), dtype=np.int32))
        return np.concatenate(parts)

    def encode_text(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Ids (N,) of a whole text, after an ``<eos>``: its first piece is predicted too."""
        return np.concatenate([np.array([END], dtype=np.int32), self.encode(lines)])

    def split(self, line: str) -> tuple[str, ...]:
        """What ``encode`` reads of a line: its pieces, then ``<eos>``."""
        pieces = (self.bytes_of[index] for index in self.subwords.encode(line))
        return (*(piece.decode("utf-8", "replace") for piece in pieces), EOS)

    def unknown_words(self, line: str) -> list[str]:
        """None: every word can be written in pieces."""
        return []

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Lines; bytes that are no characters are U+FFFD."""
        pieces = b"".join(self.bytes_of[index] for index in ids)
        return lines_of(pieces.decode("utf-8", "replace"))

    def display(self, index: int) -> str:
        """A piece with ``▁`` for a space before it."""
        return EOS if index == END else self.subwords.display(index)

    def writer(self, last: int) -> Callable[[int], str]:
        """A function from one id after another to their text, as soon as characters are whole."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda index: decoder.decode(self.bytes_of[index])

    def save(self, path: Path | str) -> None:
        """Write JSON atomically: ``tokenizer``, as tokenizers has it, and ``counts``."""
        tokenizer, counts = json.loads(self.subwords.description()), self.counts.tolist()
        content = {"tokenizer": tokenizer, "counts": counts}
        atomic_write(Path(path), json.dumps(content, ensure_ascii=False).encode("utf-8"))


def load_vocabulary(path: Path | str) -> Vocabulary:
    """Read what ``Vocabulary.save`` or ``SubwordVocabulary.save`` wrote.

    Args:
        path: of the file.

    Returns:
        The vocabulary, of words or of subwords.
    """
    content = read_json(Path(path), "vocabulary")
    try:
        counts = content["counts"]
        if "tokenizer" in content:
            return SubwordVocabulary(Subwords(json.dumps(content["tokenizer"])), counts)
        optional = (content.get("descriptions"), content.get("held_out", ()))
        return Vocabulary(content["words"], counts, *optional)
    except FAULTS as error:
        raise DataError(f"{path}: holds no vocabulary ({error})") from None
