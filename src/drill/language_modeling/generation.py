"""Sample text from a language model, starting a line as ``scoring.line_start`` does."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from drill.data import EOS, UNK, Vocabulary
from drill.language_modeling.scoring import check_vocabulary, expand_state, line_start
from drill.layers import OutputLayer
from drill.layers.checks import check_integer
from drill.layers.losses import head_log_probs
from drill.layers.wrappers.sampled import foldable
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.models.token_sampling import check_sampling, draw
from drill.training.precision import check_nan, evaluating

BETWEEN_SAMPLES = "\n\n"  # separates two samples; no piece of a text looks like it
TOKENS_PER_PART = 4096  # tokens of a prompt that go through the model at once


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    *,
    prompt: str = "",
    max_new_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    samples: int = 1,
    allow_unk: bool = False,
    start: State | None = None,
) -> Iterator[str]:
    """Continue ``prompt``; yields the text piece by piece as it is sampled.

        for piece in generate(model, vocabulary, prompt="the boat"):
            print(piece, end="", flush=True)

    A piece is a word, with a space before it inside a line, or a line break, which is ``<eos>``
    here and in the prompt; with subwords, the characters completed by the token. Labels are encoded
    once: do not train the model meanwhile. Words of the prompt outside the vocabulary are read as
    ``<unk>``; DataError if it has none.

    Args:
        max_new_tokens: how many are sampled, ``<eos>`` included.
        temperature: sample from p^(1/temperature), normalised; 0 is greedy.
        top_k: sample from the top_k likeliest words only.
        top_p: sample from the likeliest words that make up this probability.
        seed: of the random numbers; each sample has its own stream.
        samples: how many texts, sampled as a batch; BETWEEN_SAMPLES is yielded between them.
        allow_unk: whether ``<unk>`` may be sampled.
        start: the state from ``line_start`` for this model; computed if None.
    """
    check_vocabulary("generate", model, vocabulary)
    check_sampling("generate", temperature, top_k, top_p, seed)
    check_integer("generate", "max_new_tokens", max_new_tokens)
    seeds = np.random.SeedSequence(seed).spawn(check_integer("generate", "samples", samples))
    generators = [np.random.default_rng(s) for s in seeds]
    if EOS in prompt.split():
        raise ValueError(
            f"generate: the prompt must not have the word {EOS}, which marks the end of a line; "
            "put a line break there"
        )
    read = [vocabulary.ids[EOS], *vocabulary.encode(prompt.rstrip(" ").split("\n"))[:-1].tolist()]
    forbidden = None if allow_unk else vocabulary.ids.get(UNK)

    def sampled(scores: Tensor) -> list[int]:  # (samples, V)
        if forbidden is not None:
            scores[:, forbidden] = -torch.inf
        check_nan("generate", scores)
        u = torch.tensor([generator.random() for generator in generators], dtype=torch.float64)
        return draw(scores, u, temperature, top_k, top_p).tolist()

    def pieces() -> Iterator[str]:
        """The first sample as it is sampled, the others after it."""
        device = next(model.parameters()).device
        later: list[list[str]] = [[] for _ in range(samples - 1)]
        writers = [vocabulary.writer(read[-1]) for _ in range(samples)]
        ids = torch.tensor(read)[:, None].expand(-1, samples)  # then one row at a time
        with ExitStack() as stack:  # labels of a copy: the caller may use the model between pieces
            log_probs = _scorer(model.layer, stack)
            begin = line_start("generate", model, vocabulary.ids[EOS]) if start is None else start
            state = expand_state(begin, samples)
            for _ in range(max_new_tokens):
                with torch.no_grad(), evaluating(model):
                    for part in ids.to(device).split(max(1, TOKENS_PER_PART // samples)):
                        encoded = model.encoder(part, state)
                        state = encoded.state
                    scores = log_probs(encoded.output[-1]).double().cpu()
                new_ids = sampled(scores)
                ids = torch.tensor([new_ids])
                first, *others = (write(i) for write, i in zip(writers, new_ids, strict=True))
                for written, piece in zip(later, others, strict=True):
                    written.append(piece)
                yield first
        for written in later:
            yield BETWEEN_SAMPLES
            yield from written

    return pieces()


def _scorer(layer: OutputLayer, stack: ExitStack) -> Callable[[Tensor], Tensor]:
    """hidden (B, d_h) -> log p (B, V), with labels that are encoded once, now."""
    matrix = foldable(layer)
    if matrix is not None:
        head, context = matrix.fold(), matrix.context
        return lambda hidden: head_log_probs(context(hidden), head.weight, head.bias)
    frozen = copy.deepcopy(layer).eval()
    stack.enter_context(frozen.cached_labels())
    return frozen.log_probs
