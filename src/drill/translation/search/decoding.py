"""What all searches share: options, the output layer, batches of sources, masked labels."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drill.data import BEGIN, END, DataError
from drill.errors import require
from drill.layers.checks import check_integer
from drill.layers.losses import head_log_probs
from drill.layers.wrappers.sampled import foldable
from drill.models.token_sampling import check_sampling
from drill.models.translator import Translator
from drill.training.options import DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY
from drill.training.precision import autocast_to, evaluating

Sources = Tensor | Sequence[Sequence[int]]
"""Sentences as ids: (B, S) padded on the right, or a list for each."""

OnProgress = Callable[[int], None]
"""Called before every batch with the number of sentences done; an exception ends the search."""

Head = Callable[[Tensor], Tensor]  # hidden (N, d) -> log p of every label (N, V)

SCORES_PER_TOKEN = 1 << 14
"""Log-probabilities, hypotheses x labels, that a step may hold for each of ``batch_tokens``.

Of 32,000 labels and a beam of 4 this many are 8 tokens: only shorter sentences feel it. A beam
takes 3 to 4 times the memory of these numbers, sampling 10 times."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of a search.

    Attributes:
        beam_size: beam width; wider finds better scores, which are not always better translations.
            1 is greedy.
        n_best: translations of each source, at most ``beam_size`` unless they are sampled.
        length_penalty: alpha of the beam's score; 0 ranks by log p and favours short translations.
        sampled: ``translate`` samples instead, with the next four.
        temperature: sample from p^(1/temperature), normalised; 0 is greedy.
        top_k: sample from the top_k likeliest tokens only.
        top_p: sample from the likeliest tokens that make up this probability.
        seed: of the random numbers. Each sample has its own stream, so it does not depend on how
            many others there are.
        max_ratio, max_extra: a translation has at most max_ratio * source tokens + max_extra
            tokens, <eos> included; at this limit it is forced to end.
        max_source: subwords of a line that ``translate`` reads; a longer line is cut, with a
            warning.
        batch_tokens: source tokens of a batch, padding included. Batches of short sentences are
            smaller if there are many labels or hypotheses, see ``SCORES_PER_TOKEN``.
        autocast: for example torch.bfloat16; by default the model's own precision.
        graph: replay a CUDA graph, which is several times faster where the host is the
            bottleneck; by default on CUDA if the output layer folds. On a CPU True runs the same
            steps without a graph, for tests.
        bos, eos: ids that a sentence begins and ends with.
    """

    beam_size: int = DEFAULT_BEAM_SIZE
    n_best: int = 1
    length_penalty: float = DEFAULT_LENGTH_PENALTY
    sampled: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_ratio: float = 1.0
    max_extra: int = 50
    max_source: int = 512
    batch_tokens: int = 4096
    autocast: torch.dtype | None = None
    graph: bool | None = None
    bos: int = BEGIN
    eos: int = END

    def __post_init__(self) -> None:
        for name in ("beam_size", "n_best", "batch_tokens", "max_source"):
            check_integer("Search", name, getattr(self, name))
        finite, ratio, extra = "a finite number of at least 0", self.max_ratio, self.max_extra
        require(0.0 <= ratio < math.inf, "Search", "max_ratio", finite, ratio)
        require(extra >= 0, "Search", "max_extra", "at least 0", extra)
        penalty = self.length_penalty
        require(math.isfinite(penalty), "Search", "length_penalty", "finite", penalty)
        check_sampling("Search", self.temperature, self.top_k, self.top_p, self.seed)

    def limit(self, tokens: int) -> int:
        """The longest translation of a source of this many tokens; there is room for an <eos>."""
        return max(1, math.floor(self.max_ratio * tokens + self.max_extra))

    def replays(self, device: torch.device, head: Head) -> bool:
        """Whether a beam over ``head`` is searched by replays."""
        folded = isinstance(head, FoldedHead)
        if self.graph and not folded:
            raise ValueError(
                "Search: graph=True needs an output layer that folds, because a graph may read "
                "nothing back; leave graph out for this one"
            )
        return device.type == "cuda" and folded if self.graph is None else self.graph


@dataclass(frozen=True)
class Hypothesis:
    """A translation."""

    ids: tuple[int, ...]  # without <bos> and <eos>
    log_prob: float  # log p(ids, <eos> | source), a sum over tokens
    score: float  # what it was ranked by


# -- the output layer: labels that are encoded once, for all tokens of all sentences --------------


@dataclass(frozen=True)
class FoldedHead:
    """log softmax(weight context(h) + bias): what a layer of one matrix is once it is trained."""

    context: Head
    linear: nn.Linear

    def __call__(self, hidden: Tensor) -> Tensor:
        return head_log_probs(self.context(hidden), self.linear.weight, self.linear.bias)


@contextmanager
def cached_head(model: Translator, head: Head | None = None) -> Iterator[Head]:
    """The model's output layer with labels that are encoded once.

        with cached_head(model) as head:
            for batch in many:
                beam_search(model, batch, search, head=head)

    Folded where the layer folds; mixtures and adaptive softmaxes keep their labels cached. Inside,
    the model is in eval mode and must not be trained.

    Args:
        model: the translator.
        head: from an outer call; the labels are not encoded again.

    Returns:
        A context manager that gives a function from hidden states (N, d) to log p (N, V).
    """
    matrix = foldable(model.layer)
    with evaluating(model):
        if head is not None:
            yield head
        elif matrix is not None:
            yield FoldedHead(matrix.context, matrix.fold())
        else:
            with model.layer.cached_labels():
                yield model.layer.log_probs


# -- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """B sentences of about one length."""

    indices: tuple[int, ...]  # where they stand among the sources
    source: Tensor  # (B, S) on the model's device
    limits: tuple[int, ...]  # tokens that each translation may have


def batches(
    name: str, model: Translator, sources: Sources, search: Search, hypotheses: int
) -> list[Batch]:
    """Batches of sources, the longest first, so that running out of memory shows at once.

    A batch has at most ``batch_tokens`` source tokens, and a step at most ``batch_tokens`` *
    SCORES_PER_TOKEN log-probabilities over all ``hypotheses`` of each sentence.
    """
    pad, words = model.transformer.pad, model.transformer.source_embedding.num_embeddings
    device = model.transformer.source_embedding.weight.device
    if isinstance(sources, Tensor):
        if sources.dim() != 2:
            raise DataError(f"{name}: sources must have shape (B, S), got {tuple(sources.shape)}")
        sources = [row[row != pad].tolist() for row in sources.cpu()]
    for i, row in enumerate(sources):
        for word in (min(row, default=0), max(row, default=0)):
            if not 0 <= word < words:
                raise DataError(
                    f"{name}: id {word} of sentence {i} is none of the model's {words} source "
                    "words; encode the text with the vocabulary the model was trained with"
                )
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    scores = hypotheses * model.layer.vocabulary_size  # of a sentence, at every step
    max_sentences = search.batch_tokens * SCORES_PER_TOKEN // scores
    batches = []
    while order:
        width = max(1, len(sources[order[0]]))
        fit = max(1, min(search.batch_tokens // width, max_sentences))
        indices, order = tuple(order[:fit]), order[fit:]
        rows = [[*sources[i], *[pad] * (width - len(sources[i]))] for i in indices]
        limits = tuple(search.limit(len(sources[i])) for i in indices)
        batches.append(Batch(indices, torch.tensor(rows, device=device), limits))
    return batches


def search_batches(
    name: str,
    model: Translator,
    sources: Sources,
    search: Search,
    hypotheses: int,
    head: Head | None,
    progress: OnProgress | None,
    find: Callable[[Head, Batch], dict[int, list[Hypothesis]]],
) -> list[list[Hypothesis]]:
    """What ``find`` finds for the batches of all sources, in their order."""
    results: dict[int, list[Hypothesis]] = {}
    work = batches(name, model, sources, search, hypotheses)
    with cached_head(model, head) as scores:
        for batch in work:
            if progress is not None:
                progress(len(results))
            with autocast_to(batch.source.device, search.autocast):
                results |= find(scores, batch)
    return [results[index] for index in range(len(results))]


class TokenMask:
    """Masks labels: some are never generated, and at the limit only <eos> is."""

    def __init__(self, model: Translator, search: Search) -> None:
        device = model.transformer.source_embedding.weight.device
        never = sorted({search.bos, model.transformer.pad})
        self.never = torch.tensor(never, device=device)
        labels = torch.arange(model.layer.vocabulary_size, device=device)
        self.goes_on = labels != search.eos  # (V,)

    def __call__(self, log_p: Tensor, at_limit: Tensor | None) -> Tensor:
        """log p (B, K, V), -inf where masked; ``at_limit`` (B,) marks rows that must end.

        The others are not renormalised: a score is a sum of the model's log p.
        """
        log_p = log_p.index_fill(-1, self.never, -torch.inf)
        if at_limit is None:
            return log_p
        return log_p.masked_fill(at_limit[:, None, None] & self.goes_on, -torch.inf)
