"""The probability of lines, each for itself.

    log p(line) = sum_t log p(w_t | start, <eos>, w_1, ..., w_{t-1})        w_1 .. w_n, then <eos>

A line begins as one of the training text does, after the end of another; but always in the state
of ``line_start``, so that no line depends on those around it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drill.data import EOS, UNK, DataError, SubwordVocabulary, Vocabulary
from drill.kernels.lstm.persistent.recurrence import check_stall
from drill.language_modeling.line_start import line_start, repeated
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.training.precision import evaluating

TOKENS_PER_BATCH = 4096
"""Tokens that go through the model at once, padding included."""

TOKENS_PER_BLOCK = 16 * TOKENS_PER_BATCH
"""Tokens after which no further line is read before those at hand are scored."""

IGNORED = -100


@dataclass(frozen=True)
class Scored:
    """A line and its probability.

    text       as it was given, without the line break
    log_probs  of each of ``words`` after those before it, in nats
    unknown    the words that were read as ``<unk>``, in order; itself too, where the line has it
    """

    text: str
    log_probs: tuple[float, ...]
    unknown: tuple[str, ...]
    pieces: tuple[str, ...] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens: what stands between white space, or subwords; then ``<eos>``."""
        return (*self.text.split(), EOS) if self.pieces is None else self.pieces

    @property
    def tokens(self) -> int:
        return len(self.log_probs)

    @property
    def log_prob(self) -> float:
        """log p of the whole line, its end included."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        try:
            return math.exp(-self.log_prob / self.tokens)
        except OverflowError:
            return math.inf


def score(
    model: LanguageModel,
    vocabulary: Vocabulary,
    lines: Iterable[str],
    *,
    lines_per_block: int = 1024,
) -> Iterator[Scored]:
    """Each line with its probability, in the order of the lines.

    Lines are read ``lines_per_block`` at a time, fewer where they are long, and those of similar
    length go through the model together, which changes the result by rounding only. 1 answers line
    by line. Words that are not in the vocabulary are read as ``<unk>``; DataError where there is
    none.
    """
    check_vocabulary("score", model, vocabulary)
    if isinstance(lines_per_block, bool) or lines_per_block < 1:
        raise ValueError(
            f"score: lines_per_block is a whole number of at least 1, not {lines_per_block}"
        )
    if isinstance(lines, str):
        raise TypeError("score: give lines, not one string; pass [text]")
    return _scored(model, vocabulary, lines, lines_per_block)


def unknown_words(vocabulary: Vocabulary, text: str) -> list[str]:
    """The words of ``text`` that are not in the vocabulary, in order."""
    if isinstance(vocabulary, SubwordVocabulary):
        return []
    return [word for word in text.split() if word not in vocabulary]


def read_as_unknown(vocabulary: Vocabulary, text: str) -> list[str]:
    """The words of ``text`` that are ``<unk>`` to the model, in order; itself among them."""
    if isinstance(vocabulary, SubwordVocabulary):
        return []
    return [word for word in text.split() if word == UNK or word not in vocabulary]


def check_vocabulary(name: str, model: LanguageModel, vocabulary: Vocabulary) -> None:
    if len(vocabulary) != model.layer.vocabulary_size:
        raise ValueError(
            f"{name}: the vocabulary has {len(vocabulary)} words, but the model "
            f"{model.layer.vocabulary_size} labels; take the vocabulary it was trained with"
        )


class Line(NamedTuple):
    number: int  # from 1
    text: str
    ids: list[int]  # <eos>, the words, <eos>


def _scored(
    model: LanguageModel,
    vocabulary: Vocabulary,
    lines: Iterable[str],
    lines_per_block: int,
) -> Iterator[Scored]:
    start: State | None = None
    for block in _blocks(vocabulary, lines, lines_per_block):
        if start is None:
            start = line_start("score", model, vocabulary.ids[EOS])
        # All of a block before the first is handed out: in between, the model is the caller's.
        for line, found in zip(block, _log_probs(model, block, start), strict=True):
            if any(map(math.isnan, found)):
                check_stall(f"score: line {line.number}")
                raise FloatingPointError(
                    f"score: line {line.number}: the model gives NaN for a probability; look at "
                    "its weights"
                )
            pieces = None
            if isinstance(vocabulary, SubwordVocabulary):
                pieces = tuple(vocabulary.words[each] for each in line.ids[1:])
            unknown = tuple(read_as_unknown(vocabulary, line.text))
            yield Scored(line.text, found, unknown, pieces)


def _blocks(
    vocabulary: Vocabulary, lines: Iterable[str], lines_per_block: int
) -> Iterator[list[Line]]:
    block: list[Line] = []
    tokens = 0
    for number, text in enumerate(lines, start=1):
        block.append(_line(vocabulary, number, text))
        tokens += len(block[-1].ids) - 1
        if len(block) == lines_per_block or tokens >= TOKENS_PER_BLOCK:
            yield block
            block, tokens = [], 0
    if block:
        yield block


def _line(vocabulary: Vocabulary, number: int, text: str) -> Line:
    if not isinstance(text, str):
        raise TypeError(f"score: line {number} is no string but {type(text).__name__}")
    text = text.removesuffix("\n").removesuffix("\r")
    words, missing = text.split(), unknown_words(vocabulary, text)
    if EOS in words:
        raise DataError(
            f"score: line {number} holds the word {EOS}, which is kept for the end of a line; "
            "remove or rename it"
        )
    if missing and UNK not in vocabulary:
        raise DataError(
            f"score: line {number}: {missing[0]!r} is not among the {len(vocabulary)} words and "
            f"there is no {UNK}; remove it, or take a model whose vocabulary has one"
        )
    end = vocabulary.ids[EOS]
    return Line(number, text, [end, *vocabulary.encode([text]).tolist()])


@torch.no_grad()
def _log_probs(model: LanguageModel, lines: list[Line], start: State) -> list[tuple[float, ...]]:
    """log p of every token of every line, those of similar length computed together."""
    found: list[tuple[float, ...]] = [()] * len(lines)
    lengths = [len(line.ids) - 1 for line in lines]
    with evaluating(model), model.layer.cached_labels():
        for batch in _batches(lengths):
            losses = _padded_losses(model, [lines[place].ids for place in batch], start)
            for place, column in zip(batch, losses.t().tolist(), strict=True):
                found[place] = tuple(-loss for loss in column[: lengths[place]])
    return found


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Places of lines, by length; padded to their longest they are TOKENS_PER_BATCH at most."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[place] > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(place)
    yield batch


def _padded_losses(model: LanguageModel, texts: list[list[int]], start: State) -> Tensor:
    """-log p, (longest, lines) on the CPU; a line that is longer than a batch is read in parts."""
    longest = max(map(len, texts)) - 1
    inputs = torch.zeros(longest, len(texts), dtype=torch.int64)
    targets = torch.full_like(inputs, IGNORED)
    for column, ids in enumerate(texts):
        read = torch.tensor(ids)
        inputs[: len(read) - 1, column] = read[:-1]
        targets[: len(read) - 1, column] = read[1:]
    device = next(model.parameters()).device
    state = repeated(start, len(texts))
    rows = max(1, TOKENS_PER_BATCH // len(texts))
    found = []
    for part, wanted in zip(inputs.split(rows), targets.split(rows), strict=True):
        encoded = model.encoder(part.to(device), state)
        state = encoded.state
        loss = model.layer.nll(
            encoded.output,
            wanted.to(device),
            reduction="none",
            ignore_index=IGNORED,
            check=False,
        )
        found.append(loss.cpu())
    return torch.cat(found)
