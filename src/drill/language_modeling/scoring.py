"""Log-probabilities of single lines.

    log p(line) = sum_t log p(w_t | start, <eos>, w_1, ..., w_{t-1})        w_1 .. w_n, then <eos>

Every line is scored from the same initial state, ``line_start``, so its score does not depend on
the lines around it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drill.data import EOS, DataError, Vocabulary
from drill.errors import require
from drill.kernels.loss.checks import IGNORE_INDEX
from drill.models.encoder import State, map_state
from drill.models.language_model import LanguageModel
from drill.models.token_sampling import draw
from drill.training.precision import check_nan, evaluating
from drill.training.progress import perplexity_of

TOKENS_PER_BATCH = 4096  # tokens that go through the model at once, padding included
TOKENS_PER_BLOCK = 16 * TOKENS_PER_BATCH  # a block of lines is scored once it has this many tokens

LINES = 64
"""Sampled lines that ``line_start`` averages. A single one may leave a quotation open: the first
words of a small model's lines then cost 4.2 to 7.8 nats by the seed, with 64 lines 5.5 to 5.8."""

LONGEST = 64  # words after which a sampled line is cut


@dataclass(frozen=True)
class Scored:
    """A line and its log-probability.

    Attributes:
        text: the line without its line break.
        words: its tokens, words or subwords, then ``<eos>``.
        log_probs: log p of each of ``words`` given those before it, in nats.
        unknown: the words that were read as ``<unk>``, in order; a literal ``<unk>`` counts.
    """

    text: str
    words: tuple[str, ...]
    log_probs: tuple[float, ...]
    unknown: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return len(self.log_probs)

    @property
    def log_prob(self) -> float:
        """log p of the whole line, ``<eos>`` included."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        return perplexity_of(-self.log_prob / self.tokens)


def score(
    model: LanguageModel,
    vocabulary: Vocabulary,
    lines: Iterable[str],
    *,
    lines_per_block: int = 1024,
    start: State | None = None,
) -> Iterator[Scored]:
    """Score lines, in their order.

    Words outside the vocabulary are read as ``<unk>``; DataError if it has none.

    Args:
        model: in any mode; it is left as it was.
        vocabulary: the one it was trained with.
        lines: texts without line breaks.
        lines_per_block: how many lines are read before the first is scored; long lines make a block
            shorter. Lines of similar length are batched, which changes results by rounding only.
            1 answers line by line.
        start: what ``line_start`` gives for this model; computed unless given.

    Returns:
        Each line with the log-probabilities of its words, as soon as it is known.
    """
    check_vocabulary("score", model, vocabulary)
    require(lines_per_block >= 1, "score", "lines_per_block", "at least 1", lines_per_block)
    if isinstance(lines, str):
        raise TypeError("score: lines must be an iterable of strings; pass [text]")

    def scored(state: State | None = start) -> Iterator[Scored]:
        for block in _blocks(vocabulary, lines, lines_per_block):
            if state is None:
                state = line_start("score", model, vocabulary.ids[EOS])
            # A block is complete before its first line is yielded: the caller may use the model.
            log_probs = _log_probs(model, block, state)
            for line in block:
                line_log_probs = log_probs[line.number]
                check_nan(f"score: line {line.number}", torch.tensor(line_log_probs))
                unknown = tuple(vocabulary.unknown_words(line.text))
                yield Scored(line.text, vocabulary.split(line.text), line_log_probs, unknown)

    return scored()


def check_vocabulary(name: str, model: LanguageModel, vocabulary: Vocabulary) -> None:
    if len(vocabulary) != model.layer.vocabulary_size:
        raise ValueError(
            f"{name}: the vocabulary has {len(vocabulary)} words, but the model "
            f"{model.layer.vocabulary_size} labels; pass the vocabulary it was trained with"
        )


class Line(NamedTuple):
    number: int  # from 1
    text: str
    ids: list[int]  # <eos>, the words, <eos>

    @property
    def tokens(self) -> int:
        """How many are predicted."""
        return len(self.ids) - 1


def _blocks(
    vocabulary: Vocabulary, lines: Iterable[str], lines_per_block: int
) -> Iterator[list[Line]]:
    """Lines that are read before the first of them is scored.

    Of 100,000 lines of 20 tokens and one of 9,000, with 1,024 lines per block:

    block    1,024 lines, 20,480 tokens; of lines of 100 tokens it would end after 656 lines, with
             65,600 tokens
    batch    204 of its lines, sorted by length: 204 x 20 tokens are at most 4,096
    part     of the batch of the long line alone: rows 0 to 4,095, 4,096 to 8,191, 8,192 to 8,999
    """
    block: list[Line] = []
    tokens = 0
    for number, text in enumerate(lines, start=1):
        text = text.removesuffix("\n").removesuffix("\r")
        if EOS in text.split():
            raise DataError(
                f"score: line {number} has the word {EOS}, which is reserved for the end of a "
                "line; remove or rename it"
            )
        try:
            ids = vocabulary.encode([text]).tolist()
        except DataError as error:
            raise DataError(f"score: line {number}: {error}") from None
        block.append(Line(number, text, [vocabulary.ids[EOS], *ids]))
        tokens += len(ids)
        if len(block) == lines_per_block or tokens >= TOKENS_PER_BLOCK:
            yield block
            block, tokens = [], 0
    if block:
        yield block


def _batches(block: list[Line]) -> Iterator[list[Line]]:
    """Lines of similar length; with padding a batch has at most TOKENS_PER_BATCH tokens."""
    batch: list[Line] = []
    for line in sorted(block, key=lambda line: line.tokens):
        if batch and (len(batch) + 1) * line.tokens > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(line)
    yield batch


@torch.no_grad()
def _log_probs(
    model: LanguageModel, block: list[Line], start: State
) -> dict[int, tuple[float, ...]]:
    """log p of every token of every line, by the number of the line."""
    by_number: dict[int, tuple[float, ...]] = {}
    with evaluating(model), model.layer.cached_labels():
        for batch in _batches(block):
            losses = _batch_losses(model, batch, start)
            for line, column in zip(batch, losses.t().tolist(), strict=True):
                by_number[line.number] = tuple(-loss for loss in column[: line.tokens])
    return by_number


def _batch_losses(model: LanguageModel, batch: list[Line], start: State) -> Tensor:
    """-log p, (longest, lines) on the CPU; a line that is longer than a batch is read in parts."""
    inputs = pad_sequence([torch.tensor(line.ids[:-1]) for line in batch])  # (longest, lines)
    targets = pad_sequence(
        [torch.tensor(line.ids[1:]) for line in batch], padding_value=IGNORE_INDEX
    )
    device = next(model.parameters()).device
    state = expand_state(start, len(batch))
    rows = max(1, TOKENS_PER_BATCH // len(batch))
    losses = []
    for part, labels in zip(inputs.split(rows), targets.split(rows), strict=True):
        encoded = model.encoder(part.to(device), state)
        state = encoded.state
        loss = model.layer.nll(
            encoded.output,
            labels.to(device),
            reduction="none",
            ignore_index=IGNORE_INDEX,
            check=False,
        )
        losses.append(loss.cpu())
    return torch.cat(losses)


# -- the state in which a line starts ------------------------------------------------------------


@torch.no_grad()
def line_start(name: str, model: LanguageModel, end: int) -> State:
    """The state from which a line without context is read: its first input is ``<eos>``.

        start = 1/n sum_i state after line i        n lines sampled from the model, from zero

    Training sees the zero state only at the start of a stream, so first words after it are badly
    predicted: 6.92 and 5.34 nats (the demo's deep residual and tied models, 300 test lines) against
    4.64 and 4.65 from this state and 4.24 and 4.31 after the real context. The random numbers are
    fixed, so on one machine a model always starts in the same state, which is for a batch of 1.
    ``end`` is the id of ``<eos>``, ``name`` the calling function, for errors.
    """
    if not model.encoder.carries_state:
        return model.encoder.reading_state(1)
    device = next(model.parameters()).device
    numbers = np.random.default_rng(0).random((LONGEST, LINES))
    read = torch.full((1, LINES), end, device=device)
    state = model.initial_state(LINES)
    writing = torch.ones(LINES, dtype=torch.bool)
    with evaluating(model), model.layer.cached_labels():
        for u in numbers:
            encoded = model.encoder(read, state)
            active = writing.to(device)[:, None]
            state = map_state(
                lambda new, old, active=active: torch.where(active, new, old), encoded.state, state
            )
            log_probs = model.layer.log_probs(encoded.output[-1])
            check_nan(name, log_probs)
            words = draw(log_probs.double().cpu(), torch.from_numpy(u))
            writing &= words != end
            if not writing.any():
                break
            read = words[None].to(device)
    return map_state(lambda part: part.mean(-2, keepdim=True), state)


def expand_state(state: State, batch: int) -> State:
    return map_state(lambda part: part.expand(*part.shape[:-2], batch, -1).contiguous(), state)
