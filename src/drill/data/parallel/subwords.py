"""Pieces of words and their ids, one set for both languages of a translation.

Byte-pair encoding over bytes: it starts from the 256 bytes and merges the most frequent neighbours,
so there is no unknown word and every text comes back exactly as it was.
"""

import hashlib
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from drill.data.extras import missing_packages
from drill.errors import DataError
from drill.files import atomic_write

logger = logging.getLogger("drill")

PAD, BEGIN, END = 0, 1, 2
"""Ids that no text has: what fills a batch, what starts a translation, what ends a line."""

SPECIAL = ("<pad>", "<begin>", "<end>")
SMALLEST = len(SPECIAL) + 256
REPORT_EVERY = 10_000  # lines
MOST_KNOWN = 1_000_000  # words that are remembered, some 300 MB

Progress = Callable[[int, int | None], None]
"""Called with the lines read and the lines in all, None where that is not known."""


class Subwords:
    """V pieces: ``<pad>``, ``<begin>`` and ``<end>``, the 256 bytes, then merges by frequency.

    A text that holds ``<end>`` as words keeps it as words: encoding gives none of the three ids.

        subwords = Subwords.train(english + german, size=32_000)
        subwords.decode(subwords.encode("Grüße, 世界 🎉")) == "Grüße, 世界 🎉"
    """

    def __init__(self, description: str) -> None:
        """``description`` is JSON in the library's own format, as the method of that name gives."""
        parsed = json.loads(description)
        self._check(parsed)
        try:
            self._tokenizer: Any = _library().Tokenizer.from_str(description)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"Subwords: the description is damaged ({error})") from None
        self._tokenizer.encode_special_tokens = True  # the library does not keep this in its JSON
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._size: int = self._tokenizer.get_vocab_size()
        self._known: dict[str, list[int]] = {}  # words and their ids after a space
        parts = [parsed["model"]["vocab"], parsed["model"]["merges"], parsed["pre_tokenizer"]]
        self.fingerprint: str = hashlib.sha256(
            json.dumps(parts, sort_keys=True).encode("utf-8")
        ).hexdigest()
        """sha256 of pieces and merges: equal where ``encode`` gives equal ids."""

    @staticmethod
    def _check(parsed: Any) -> None:
        """Raise for a tokenizer that the library accepts but that does not restore every text."""
        alphabet = set(_library().pre_tokenizers.ByteLevel.alphabet())
        try:
            model = parsed["model"]
            vocabulary = model["vocab"]
            bytewise = model["type"] == "BPE" and parsed["decoder"]["type"] == "ByteLevel"
            exact = parsed["normalizer"] is None and model["dropout"] is None
            specials = [vocabulary[name] for name in SPECIAL] == [PAD, BEGIN, END]
            whole = set(vocabulary.values()) == set(range(len(vocabulary)))
            complete = alphabet <= vocabulary.keys()
            *digits, split = parsed["pre_tokenizer"].get("pretokenizers", [parsed["pre_tokenizer"]])
            bytewise = bytewise and split["type"] == "ByteLevel" and split["use_regex"]
            exact = exact and not split["add_prefix_space"]
            exact = exact and all(each["type"] == "Digits" for each in digits)
        except (LookupError, TypeError, AttributeError, ValueError):
            bytewise = exact = specials = whole = complete = False
        if not (bytewise and exact and specials and whole and complete):
            raise DataError(
                "Subwords: this is no byte-level BPE with the ids 0 to 2 for "
                f"{', '.join(SPECIAL)}; make it with Subwords.train"
            )

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int = 32_000,
        *,
        min_count: int = 2,
        single_digits: bool = False,
        progress: Progress | None = None,
    ) -> "Subwords":
        """Learn pieces from the lines of both languages; the same lines give the same pieces.

        Pairs of pieces rarer than ``min_count`` are not merged, so a short text gives fewer
        pieces than ``size``; the log ``drill`` says so. ``single_digits`` keeps numbers as digits:
        take it where numbers never seen before must come out right.
        """
        if isinstance(lines, str):
            raise TypeError("Subwords: train takes lines, not one string; pass [text]")
        if size < SMALLEST:
            raise DataError(
                f"Subwords: size is at least {SMALLEST} ({len(SPECIAL)} special ids and 256 "
                f"bytes), not {size}"
            )
        if min_count < 1:
            raise DataError(f"Subwords: min_count is at least 1, not {min_count}")
        library = _library()
        split = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        if single_digits:
            digits = library.pre_tokenizers.Digits(individual_digits=True)
            split = library.pre_tokenizers.Sequence([digits, split])
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = split
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_count,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        total = len(lines) if isinstance(lines, Sequence) else None
        seen = _Counted(lines, total, progress)
        tokenizer.train_from_iterator(iter(seen), trainer)
        if seen.count == 0:
            raise DataError("Subwords: there is no line to learn from; give a text")
        subwords = cls(tokenizer.to_str())
        if len(subwords) < size:
            logger.warning(
                "%d lines gave %d subwords, not %d: no other pair occurs %d times",
                seen.count,
                len(subwords),
                size,
                min_count,
            )
        return subwords

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Subwords):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Subwords({len(self)} pieces)"

    def encode(self, line: str) -> list[int]:
        """Ids of a line, without begin or end; an empty line has none."""
        return self._encode([line])[0]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """``encode`` of many lines, some three times as fast on ordinary text.

        No piece reaches over a space that stands alone, so a word after one has the same ids in
        every line and is encoded once. Lines with other white space are encoded as a whole.
        """
        if isinstance(lines, str):
            raise TypeError("Subwords: encode_lines takes lines, not one string; pass [line]")
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        known = self._known
        starts: list[str] = []
        rests: list[list[str]] = []
        for line in lines:
            if not isinstance(line, str):
                raise _not_a_text(lines)
            words = line.split(" ")
            ordinary = words == line.split()
            starts.append(words[0] if ordinary else line)
            rests.append(words[1:] if ordinary else [])
        new = list(set(chain.from_iterable(rests)).difference(known))
        try:
            known.update(zip(new, self._encode([f" {word}" for word in new]), strict=True))
            heads = self._encode(starts)
        except DataError:
            raise _not_a_text(lines) from None
        look_up = known.__getitem__
        return [
            list(chain(head, *map(look_up, rest))) for head, rest in zip(heads, rests, strict=True)
        ]

    def _encode(self, lines: list[str]) -> list[list[int]]:
        try:
            found = self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        except TypeError:  # what the library says of anything it cannot turn into UTF-8
            raise _not_a_text(lines) from None
        return [each.ids for each in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; begin, end and padding are left out.

        Ids that a model made up may be no whole characters: U+FFFD stands for such bytes.
        """
        checked = [int(each) for each in ids]
        if checked and not (min(checked) >= 0 and max(checked) < len(self)):
            wrong = next(each for each in checked if not 0 <= each < len(self))
            raise DataError(f"Subwords: id {wrong} lies outside 0 to {len(self) - 1}")
        text: str = self._tokenizer.decode(checked, skip_special_tokens=True)
        return text

    def piece(self, index: int) -> str:
        """How the library writes a piece: one sign per byte, ``Ġ`` for a space."""
        if not 0 <= index < len(self):
            raise DataError(f"Subwords: id {index} lies outside 0 to {len(self) - 1}")
        name: str = self._tokenizer.id_to_token(index)
        return name

    def description(self) -> str:
        """The library's JSON, of which ``Subwords(description)`` makes these again."""
        text: str = self._tokenizer.to_str()
        return text

    def save(self, path: Path | str) -> None:
        """Write ``description`` atomically, as a tokenizer.json of the tokenizers library."""
        atomic_write(Path(path), self.description().encode("utf-8"))

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """What ``save`` wrote; a file that holds anything else is named in a DataError."""
        path = Path(path)
        try:
            description = path.read_bytes().decode("utf-8")
            return cls(description)
        except OSError as error:
            fault = error.strerror or type(error).__name__
            raise DataError(f"{path}: cannot be read ({fault}); name a subwords file") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        except (ValueError, RecursionError):
            raise DataError(
                f"{path}: is not JSON; write it with Subwords.save, or take another file"
            ) from None


class _Counted:
    """Lines on their way into the library; how many went by."""

    def __init__(self, lines: Iterable[str], total: int | None, progress: Progress | None) -> None:
        self.lines, self.total, self.progress = lines, total, progress
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.count += 1
            try:
                line.encode("utf-8")
            except (UnicodeEncodeError, AttributeError):
                raise _not_a_text([line], self.count) from None
            yield line
            if self.progress is not None and self.count % REPORT_EVERY == 0:
                self.progress(self.count, self.total)
        if self.progress is not None:
            self.progress(self.count, self.total)


def _not_a_text(lines: Sequence[Any], start: int = 1) -> Exception:
    for number, line in enumerate(lines, start=start):
        if not isinstance(line, str):
            return TypeError(f"Subwords: line {number} is of type {type(line).__name__}, not str")
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            return DataError(
                f"Subwords: {line[error.start]!r} in line {number} is no character of UTF-8; "
                "remove it"
            )
    return TypeError("Subwords: the lines cannot be encoded; pass a list of str")


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise missing_packages("subwords need", "tokenizers") from None
