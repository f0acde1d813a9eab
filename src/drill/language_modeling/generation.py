"""Sample text from a language model, starting a line as ``scoring.line_start`` does."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drill.data import EOS, UNK, SubwordVocabulary, Vocabulary
from drill.kernels.lstm.persistent.recurrence import check_stall
from drill.language_modeling.scoring import check_vocabulary, line_start, repeated
from drill.layers import MatrixLayer, OutputLayer, SampledSoftmax
from drill.layers.base import head_log_probs
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.training.precision import evaluating

BETWEEN_SAMPLES = "\n\n"
"""Separates two samples; no piece of a text looks like it."""

TOKENS_PER_PART = 4096
"""Tokens of a prompt that go through the model at once."""


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    *,
    prompt: str = "",
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    samples: int = 1,
    allow_unknown: bool = False,
    start: State | None = None,
) -> Iterator[str]:
    """Continue ``prompt``; yields the text piece by piece as it is sampled.

        for piece in generate(model, vocabulary, prompt="the boat"):
            print(piece, end="", flush=True)

    A piece is a word, with a space before it inside a line, or a line break, which is ``<eos>``
    here and in the prompt; of subwords, the characters that became whole. Labels are encoded once:
    do not train the model meanwhile. Words of the prompt outside the vocabulary are read as
    ``<unk>``; DataError if it has none.

    Args:
        tokens: how many are sampled, ``<eos>`` included.
        temperature: sample from p^(1/temperature), normalised; 0 is greedy.
        top_k: sample from the top_k likeliest words only.
        top_p: sample from the likeliest words that make up this probability.
        seed: of the random numbers; each sample has its own stream.
        samples: how many texts, sampled as a batch; BETWEEN_SAMPLES is yielded between them.
        allow_unknown: whether ``<unk>`` may be sampled.
        start: what ``line_start`` gives for this model; computed unless given.
    """
    check_vocabulary("generate", model, vocabulary)
    for name, value, least in (
        ("tokens", tokens, 1),
        ("samples", samples, 1),
        ("top_k", top_k, 1),
        ("seed", seed, 0),
    ):
        if value is not None and (not isinstance(value, int) or value < least):
            raise ValueError(f"generate: {name} is a whole number of at least {least}, not {value}")
    if not 0.0 <= temperature < math.inf:  # NaN fails too
        raise ValueError(
            f"generate: temperature is a finite number of at least 0, not {temperature}"
        )
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ValueError(f"generate: top_p lies in (0, 1], not {top_p}")
    seeds = np.random.SeedSequence(seed).spawn(samples)
    generators = [np.random.default_rng(each) for each in seeds]
    if EOS in prompt.split():
        raise ValueError(
            f"generate: the prompt holds the word {EOS}, which marks the end of a line; put "
            "a line break there"
        )
    read = [vocabulary.ids[EOS], *vocabulary.encode(prompt.rstrip(" ").split("\n"))[:-1].tolist()]
    forbidden = None if allow_unknown else vocabulary.ids.get(UNK)

    def draw(scores: NDArray[np.float64], generator: np.random.Generator) -> int:
        if forbidden is not None:
            scores[forbidden] = -math.inf
        if np.isnan(scores).any():
            check_stall("generate")
            raise FloatingPointError(
                "generate: the model returns NaN for a probability; look at its weights"
            )
        if scores.max() == -math.inf:
            raise ValueError(
                f"generate: no word but {UNK} has a probability here; pass allow_unknown=True"
            )
        if temperature == 0.0:
            return int(scores.argmax())
        return chosen(truncated(scores, temperature, top_k, top_p), generator.random())

    return _pieces(model, vocabulary, read, tokens, draw, generators, start)


def _pieces(
    model: LanguageModel,
    vocabulary: Vocabulary,
    read: list[int],
    tokens: int,
    draw: Callable[[NDArray[np.float64], np.random.Generator], int],
    generators: list[np.random.Generator],
    start: State | None,
) -> Iterator[str]:
    """The first sample as it is sampled, the others after it."""
    device = next(model.parameters()).device
    later: list[list[str]] = [[] for _ in generators[1:]]
    writers = [_writer(vocabulary, read[-1]) for _ in generators]
    ids = torch.tensor(read)[:, None].expand(-1, len(generators))  # then one row at a time
    with ExitStack() as stack:  # labels of a copy: the caller may use the model between two pieces
        log_probs = _scorer(model.layer, stack)
        if start is None:
            start = line_start("generate", model, vocabulary.ids[EOS])
        state = repeated(start, len(generators))
        for _ in range(tokens):
            scores, state = _next_scores(model, log_probs, ids.to(device), state)
            drawn = [
                draw(row, generator) for row, generator in zip(scores, generators, strict=True)
            ]
            pieces = [write(new) for write, new in zip(writers, drawn, strict=True)]
            ids = torch.tensor([drawn])
            for pending, piece in zip(later, pieces[1:], strict=True):
                pending.append(piece)
            yield pieces[0]
    for pieces in later:
        yield BETWEEN_SAMPLES
        yield from pieces


@torch.no_grad()
def _next_scores(
    model: LanguageModel,
    log_probs: Callable[[Tensor], Tensor],
    ids: Tensor,  # (T, B)
    state: State,
) -> tuple[NDArray[np.float64], State]:
    """log p of every next word (B, V) after ``ids``, and the state there."""
    rows = max(1, TOKENS_PER_PART // ids.shape[1])
    with evaluating(model):
        for part in ids.split(rows):
            encoded = model.encoder(part, state)
            state = encoded.state
        return log_probs(encoded.output[-1]).double().cpu().numpy(), encoded.state


def _scorer(layer: OutputLayer, stack: ExitStack) -> Callable[[Tensor], Tensor]:
    """hidden (B, d_h) -> log p (B, V), with labels that are encoded once, now."""
    matrix = layer.layer if isinstance(layer, SampledSoftmax) else layer
    if isinstance(matrix, MatrixLayer):
        head, context = matrix.fold(), matrix.context
        return lambda hidden: head_log_probs(context(hidden), head.weight, head.bias)
    own = copy.deepcopy(layer).eval()
    stack.enter_context(own.cached_labels())
    return own.log_probs


def truncated(
    log_probs: NDArray[np.float64],  # (V,)
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> NDArray[np.float64]:
    """p^(1/temperature) over the likeliest words, normalised: (V,).

    First the ``top_k`` likeliest, then of these the fewest that make up ``top_p``, at least one.
    Ties go to the lower id.
    """
    with np.errstate(over="ignore"):  # next to a temperature of 0, -inf is right
        p = np.exp((log_probs - log_probs.max()) / temperature)
    if top_k is not None or top_p is not None:
        order = np.argsort(-p, kind="stable")
        count = len(p) if top_k is None else min(top_k, len(p))
        if top_p is not None:
            mass = np.cumsum(p[order[:count]])
            count = 1 + int(np.searchsorted(mass[:-1], top_p * mass[-1], side="left"))
        p[order[count:]] = 0.0
    return p / p.sum()


def chosen(p: NDArray[np.float64], u: float) -> int:
    """Inverse transform sampling with ``u`` in [0, 1); never a word of probability 0."""
    mass = np.cumsum(p)
    index = np.searchsorted(mass, u * mass[-1], side="right")
    return int(min(index, np.flatnonzero(p)[-1]))  # u * mass may round up to all of it


def _writer(vocabulary: Vocabulary, last: int) -> Callable[[int], str]:
    """A function from one id after another, the first after ``last``, to their text."""
    if isinstance(vocabulary, SubwordVocabulary):
        return vocabulary.writer()
    before = vocabulary.words[last]

    def write(index: int) -> str:
        nonlocal before
        after, before = before, vocabulary.words[index]
        if before == EOS:
            return "\n"
        return before if after == EOS else f" {before}"

    return write
