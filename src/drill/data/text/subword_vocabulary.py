"""Subwords of a text for language models: byte-level BPE with counts and bytes of its pieces.

A line is its pieces and the end of the line, which stands for ``\\n``. Nothing is unknown, and the
text comes back exactly, so a loss can be divided by the bytes of the text.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drill.data.subwords import END, Subwords
from drill.data.text.vocabulary import EOS, UNK, Vocabulary
from drill.errors import DataError
from drill.files import atomic_write, lines_of, read_json

LINES_AT_ONCE = 4096  # ids of a long text as lists of Python would fill the memory


class SubwordVocabulary(Vocabulary):
    """V pieces of ``subwords``; ``<eos>`` ends a line.

    Args:
        subwords: the pieces.
        counts: (V,), how often each piece occurs in the training text.

    Attributes:
        bytes_of: the bytes of every piece, ``\\n`` of ``<eos>``, none of the other special ids.
        token_bytes: (V,), how many they are.
    """

    def __init__(self, subwords: Subwords, counts: Sequence[int]) -> None:
        pieces = [subwords.piece(index) for index in range(len(subwords))]
        super().__init__(
            [EOS if index == END else each for index, each in enumerate(pieces)], counts
        )
        self.subwords = subwords
        self.bytes_of = [
            b"\n" if index == END else subwords.piece_bytes(index) for index in range(len(pieces))
        ]
        self.token_bytes = np.array([len(each) for each in self.bytes_of])

    def __contains__(self, word: object) -> bool:
        return word != UNK  # every word can be written in pieces

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubwordVocabulary):
            return False
        return self.subwords == other.subwords and np.array_equal(self.counts, other.counts)

    __hash__ = None

    def __repr__(self) -> str:
        return f"SubwordVocabulary({len(self)} pieces)"

    @property
    def fingerprint(self) -> str:
        return self.subwords.fingerprint

    def encode(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Ids (N,) of all pieces, with ``<eos>`` after each line."""
        parts = [np.zeros(0, dtype=np.int32)]
        rest = iter(lines)
        while block := list(islice(rest, LINES_AT_ONCE)):
            found = self.subwords.encode_lines(block)
            parts.append(np.fromiter((i for line in found for i in (*line, END)), dtype=np.int32))
        return np.concatenate(parts)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Lines; bytes that are no characters are U+FFFD."""
        return lines_of(b"".join(self.bytes_of[each] for each in ids).decode("utf-8", "replace"))

    def display(self, index: int) -> str:
        """A piece with ``▁`` for a space before it."""
        return EOS if index == END else self.subwords.display(index)

    def text_of(self, index: int) -> str:
        """A piece for people, ``<eos>`` of the end of a line."""
        return EOS if index == END else self.bytes_of[index].decode("utf-8", "replace")

    def incremental_decoder(self) -> Callable[[int], str]:
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
    if not isinstance(content, dict) or "tokenizer" not in content:
        return Vocabulary.load(path)  # or its error
    try:
        return SubwordVocabulary(Subwords(json.dumps(content["tokenizer"])), content["counts"])
    except (DataError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
