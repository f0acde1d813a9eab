"""The BPE tokenizer of both tasks: pieces of words and their ids.

Byte-pair encoding over bytes: it starts from the 256 bytes and merges the most frequent neighbours,
so there is no unknown word and every text comes back exactly as it was.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from drill.data.cache import cache_key, cached
from drill.data.optional_packages import import_optional
from drill.errors import DataError, require
from drill.files import atomic_write, read_json

logger = logging.getLogger("drill")

PAD, BEGIN, END = 0, 1, 2
"""Ids that no text has: what fills a batch, what starts a translation, what ends a line."""

SPECIAL = ("<pad>", "<begin>", "<end>")
SMALLEST = len(SPECIAL) + 256
REPORT_EVERY = 10_000  # lines
MOST_KNOWN = 1_000_000  # words that are remembered, some 300 MB

OnProgress = Callable[[int, int | None], None]
"""Called with the lines read and the lines in all, None where that is not known."""


class Subwords:
    """V pieces: ``<pad>``, ``<begin>`` and ``<end>``, the 256 bytes, then merges by frequency.

    A text that holds ``<end>`` as words keeps it as words: encoding gives none of the three ids.

        subwords = Subwords.train(english + german, size=32_000)
        subwords.decode(subwords.encode("Grüße, 世界 🎉")) == "Grüße, 世界 🎉"

    Args:
        description: JSON in the format of the tokenizers library, as the method of that name gives.
    """

    def __init__(self, description: str) -> None:
        library = _library()
        try:
            parsed = json.loads(description)
            parts = [parsed["model"]["vocab"], parsed["model"]["merges"], parsed["pre_tokenizer"]]
            byte_level = parsed["decoder"]["type"] == "ByteLevel"
            special = [parts[0].get(name) for name in SPECIAL]
            self._tokenizer: Any = library.Tokenizer.from_str(description)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"Subwords: the description is damaged ({error!r})") from None
        if not byte_level or special != [PAD, BEGIN, END]:
            raise DataError(
                "Subwords: this is no byte-level BPE with the ids 0 to 2 for "
                f"{', '.join(SPECIAL)}; make it with Subwords.train"
            )
        self._tokenizer.encode_special_tokens = True  # the library does not keep this in its JSON
        self._size: int = self._tokenizer.get_vocab_size()
        self._known: dict[str, list[int]] = {}  # words and their ids after a space
        content = json.dumps(parts, sort_keys=True).encode("utf-8")
        self.fingerprint: str = hashlib.sha256(content).hexdigest()
        """sha256 of pieces and merges: equal where ``encode`` gives equal ids."""

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int = 32_000,
        *,
        min_count: int = 2,
        single_digits: bool = False,
        progress: OnProgress | None = None,
    ) -> "Subwords":
        """Learn pieces from a text; the same lines give the same pieces.

        Args:
            lines: of the training text, a translator's in both languages.
            size: number of pieces; a short text gives fewer, with a warning.
            min_count: pairs of pieces that are rarer are not merged.
            single_digits: split numbers into digits, for texts in which new numbers must come out
                right.
            progress: called with the lines read and the lines in all, None if that is not known.

        Returns:
            The subwords.
        """
        if isinstance(lines, str):
            raise TypeError("Subwords: train takes lines, not one string; pass [text]")
        least = f"at least {SMALLEST} ({len(SPECIAL)} special ids and 256 bytes)"
        require(size >= SMALLEST, "Subwords", "size", least, size, DataError)
        require(min_count >= 1, "Subwords", "min_count", "at least 1", min_count, DataError)
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
        count = 0

        def counted() -> Iterator[str]:
            nonlocal count
            for line in lines:
                count += 1
                yield line
                if progress is not None and count % REPORT_EVERY == 0:
                    progress(count, total)
            if progress is not None:
                progress(count, total)

        tokenizer.train_from_iterator(counted(), trainer)
        if count == 0:
            raise DataError("Subwords: there is no line to learn from; give a text")
        subwords = cls(tokenizer.to_str())
        if len(subwords) < size:
            logger.warning(
                f"{count:,} lines gave {len(subwords):,} subwords, not {size:,}: no other pair "
                f"occurs {min_count} times"
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
        """Ids of a line, without begin or end; none for an empty line."""
        return self._encode([line])[0]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """``encode`` of many lines, some three times as fast on ordinary text.

        No piece reaches over a space that stands alone, so a word after one has the same ids in
        every line and is encoded once. Lines with other white space are encoded as a whole.
        """
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        known = self._known
        starts: list[str] = []
        rests: list[list[str]] = []
        for line in lines:
            words = line.split(" ")
            ordinary = words == line.split()
            starts.append(words[0] if ordinary else line)
            rests.append(words[1:] if ordinary else [])
        new = list(set(chain.from_iterable(rests)).difference(known))
        known.update(zip(new, self._encode([f" {word}" for word in new]), strict=True))
        heads = self._encode(starts)
        look_up = known.__getitem__
        return [
            list(chain(head, *map(look_up, rest))) for head, rest in zip(heads, rests, strict=True)
        ]

    def _encode(self, lines: list[str]) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        except TypeError:  # raised for anything that is not UTF-8
            raise DataError("Subwords: a line is not UTF-8 text; remove it") from None
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without begin, end and padding.

        U+FFFD stands for bytes that are no whole characters.
        """
        checked = [self._checked(int(index)) for index in ids]
        return str(self._tokenizer.decode(checked, skip_special_tokens=True))

    def piece(self, index: int) -> str:
        """How the library writes a piece: one sign per byte, ``Ġ`` for a space."""
        return str(self._tokenizer.id_to_token(self._checked(index)))

    def piece_bytes(self, index: int) -> bytes:
        """The bytes that a piece stands for; none for begin, end and padding."""
        return bytes(BYTES[sign] for sign in self.piece(index)) if index >= len(SPECIAL) else b""

    def display(self, index: int) -> str:
        """A piece for people: ``▁`` for a space, ``<0xC3>`` for a byte that is no character."""
        raw = self.piece_bytes(index)
        if not raw:
            return self.piece(index)
        text = raw.decode("utf-8", "replace").replace(" ", "▁")
        if text.isprintable() and "\ufffd" not in text:
            return text
        return "".join(f"<0x{byte:02X}>" for byte in raw)

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise DataError(f"Subwords: id must be in 0 to {len(self) - 1}, got {index}")
        return index

    def description(self) -> str:
        """What ``Subwords(description)`` makes these subwords of."""
        return str(self._tokenizer.to_str())

    def save(self, path: Path | str) -> None:
        """Write ``description`` atomically, as a tokenizer.json of the tokenizers library."""
        atomic_write(Path(path), self.description().encode("utf-8"))

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """Read what ``save`` wrote; any other file raises DataError."""
        content = read_json(Path(path), "subwords")
        try:
            return cls(json.dumps(content))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def cached_subwords(lines: Sequence[str], cache: Path | None, **options: Any) -> Subwords:
    """``Subwords.train``, cached by the lines and the options."""
    settings = {key: value for key, value in options.items() if key != "progress"}
    return cached(
        cache,
        cache_key("drill subwords 2", json.dumps(settings, sort_keys=True), "\n".join(lines)),
        build=lambda: Subwords.train(lines, **options),
        load=lambda entry: Subwords.load(entry / "subwords.json"),
        save=lambda subwords, entry: subwords.save(entry / "subwords.json"),
    )


def _byte_values() -> dict[str, int]:
    """The byte of every character in which byte-level BPE writes its pieces.

    Printable ones are themselves, the others the characters from U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = [*map(chr, printable), *(chr(256 + index) for index in range(len(others)))]
    return dict(zip(signs, [*printable, *others], strict=True))


BYTES = _byte_values()


def _library() -> Any:
    return import_optional("tokenizers", "subwords need", "tokenizers")
