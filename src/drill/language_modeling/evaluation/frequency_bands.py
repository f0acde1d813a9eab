"""Loss of a language model by frequency of words or subwords.

Words are grouped into bands by their count in the training text. Two models are compared band by
band with two measures, which can disagree:

    by types    100 * mean over words w of (B_w - A_w) / A_w     every word weighs the same
    by tokens   100 * (sum_w B_w - sum_w A_w) / sum_w A_w        every occurrence weighs the same

A_w and B_w are the summed losses of word w under models A and B. Positive: B loses more. The first
is that of the paper's figure; a few words that occur once can change it a lot, so report both.

A ratio means nothing for a word on which A loses next to nothing: 0.0001 nats that become 0.01 are
ten thousand percent. So changes are also given in nats, with the number of such words (``sure``).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from drill.data import EOS, UNK, DataError, Vocabulary
from drill.data.catalog import TEXT_CORPORA
from drill.training.progress import perplexity_of

EDGES = (1, 50, 100, 250, 500, 1000, 2500, 5000)
"""Training counts at which the paper's bands begin; the last one has no end."""

SUBWORD_EDGES = (1, 100, 1_000, 10_000, 100_000)
"""The same for subwords, which are rarely rare: BPE merges pairs that are frequent."""

SURE = 0.05  # nats per token: ratios to a smaller loss mean nothing
FEW = 0.01  # largest fraction of such words in a band for which ``by_types`` is shown

Values = ArrayLike | Tensor


@dataclass(frozen=True)
class CountRange:
    """Words whose training count is at least ``low`` and below ``high``."""

    low: int
    high: int | None

    @property
    def label(self) -> str:
        """``never``, ``1 to 49``, ``5,000 and more``."""
        if self.low == 0:
            return "never"
        if self.high is None:
            return f"{self.low:,} and more"
        last = self.high - 1
        return f"{last:,}" if last == self.low else f"{self.low:,} to {last:,}"


@dataclass(frozen=True)
class Band(CountRange):
    """The losses of the words of a band."""

    types: int  # distinct words among the targets
    tokens: int  # their occurrences
    loss: float  # summed -log p, in nats
    type_loss: float | None = None  # the mean -log p of each type, summed; older rows have none

    @property
    def mean_loss(self) -> float:
        """Per token; NaN where no token is in the band."""
        return self.loss / self.tokens if self.tokens else math.nan

    @property
    def mean_by_types(self) -> float | None:
        """Per token of a type, the mean over types; None where it is not known."""
        return self.type_loss / self.types if self.types and self.type_loss is not None else None

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.mean_loss)


@dataclass(frozen=True)
class BandChange(CountRange):
    """How much more model B loses than model A in a band."""

    types: int
    tokens: int
    by_types: float  # in percent of A's loss, as above
    by_tokens: float
    nats: float = math.nan  # a token; NaN where it is not known
    sure: int = 0  # words on which A loses less than SURE a token

    @property
    def by_types_is_meaningful(self) -> bool:
        """Whether few words are ``sure``."""
        return self.sure <= FEW * self.types


def frequency_bands(
    losses: Values,
    targets: Values,
    counts: Values,
    *,
    edges: Sequence[int] = EDGES,
    exclude: Collection[int] = (),
) -> list[Band]:
    """Losses by how often words occur in training.

    Args:
        losses: (N,) -log p of each target, as ``token_losses`` gives them.
        targets: (N,) ids of the words that were predicted.
        counts: (V,) occurrences in the training text: ``Vocabulary.counts``.
        edges: counts at which bands begin, from 1 on.
        exclude: ids left out: that of ``<eos>``, and that of ``<unk>`` unless the corpus itself has
            it as a word, as Penn Treebank; the paper's figure leaves out ``<eos>`` alone.

    Returns:
        A band for words never seen in training, then one from each edge to the next; the lowest
        begins at the smallest count.
    """
    count, tokens, loss = _by_word(losses, targets, counts, exclude)
    return [
        Band(
            low,
            high,
            int(inside.sum()),
            int(tokens[inside].sum()),
            float(loss[inside].sum()),
            float((loss / tokens)[inside].sum()),
        )
        for low, high, inside in _bands(count, edges, counts, exclude)
    ]


def vocabulary_bands(
    losses: Values, targets: Values, vocabulary: Vocabulary, corpus: str
) -> list[Band]:
    """``frequency_bands`` with the edges and exclusions of a vocabulary."""
    exclude = [vocabulary.ids[word] for word in excluded_words(vocabulary, corpus)]
    edges = default_edges(vocabulary)
    return frequency_bands(losses, targets, vocabulary.counts, edges=edges, exclude=exclude)


def default_edges(vocabulary: Vocabulary) -> Sequence[int]:
    return SUBWORD_EDGES if vocabulary.unit == "subwords" else EDGES


def excluded_words(vocabulary: Vocabulary, corpus: str) -> tuple[str, ...]:
    """``<eos>``, and ``<unk>`` unless a closed corpus has it as a word: as the paper's figure."""
    closed = corpus in TEXT_CORPORA and TEXT_CORPORA[corpus].closed
    return (EOS, UNK) if not closed and UNK in vocabulary else (EOS,)


def compare_bands(
    a: Values,
    b: Values,
    targets: Values,
    counts: Values,
    *,
    edges: Sequence[int] = EDGES,
    exclude: Collection[int] = (),
) -> list[BandChange]:
    """Losses of two models on the same targets, band by band.

    Args:
        a: (N,) losses of the model to compare with.
        b: (N,) losses of the other model.
        targets: as in ``frequency_bands``, and so are counts, edges and exclude.
        counts: (V,) occurrences in the training text.
        edges: counts at which bands begin.
        exclude: ids left out.

    Returns:
        A change for each band; one without tokens has NaN. A word on which A loses nothing makes
        ``by_types`` infinite, unless B loses nothing on it either.
    """
    count, occurrences, loss = _by_word(a, targets, counts, exclude)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = _by_word(b, targets, counts, exclude)[2] - loss
        relative = np.where(difference == 0, 0.0, difference / loss)
    changes = []
    for low, high, inside in _bands(count, edges, counts, exclude):
        types, tokens = int(inside.sum()), int(occurrences[inside].sum())
        base, more = float(loss[inside].sum()), float(difference[inside].sum())
        pooled = more / base if base else (math.inf if more else 0.0)
        changes.append(
            BandChange(
                low,
                high,
                types,
                tokens,
                by_types=100 * float(relative[inside].sum()) / types if types else math.nan,
                by_tokens=100 * pooled if types else math.nan,
                nats=more / tokens if tokens else math.nan,
                sure=int((loss < SURE * occurrences)[inside].sum()),
            )
        )
    return changes


def band_ends(
    edges: Sequence[int], counts: Values = (), exclude: Collection[int] = ()
) -> list[tuple[int, int | None]]:
    """(low, high) of every band; the first holds what was never seen, the last has no end.

    Words of a vocabulary with these ``counts`` are in no band below the smallest one.
    """
    if not edges or edges[0] != 1 or any(x >= y for x, y in pairwise(edges)):
        raise DataError(f"edges start at 1 and rise, not {list(edges)}")
    seen = np.delete(_array(counts), list(exclude))
    smallest = int(min(seen[seen > 0], default=1))
    higher = [edge for edge in edges if edge > smallest]
    return list(zip([0, smallest, *higher], [1, *higher, None], strict=True))


def _by_word(
    losses: Values, targets: Values, counts: Values, exclude: Collection[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Training count, occurrences and summed loss of each word among the targets, (words,) each."""
    nll = _array(losses).astype(np.float64)  # float32 sums over a text drift
    ids, seen = (_array(values).astype(np.int64) for values in (targets, counts))
    if len(nll) != len(ids):
        raise DataError(
            f"{len(nll)} losses and {len(ids)} targets do not match; the first token of a text is "
            "no target"
        )
    tokens = np.bincount(ids, minlength=len(seen))
    loss = np.bincount(ids, weights=nll, minlength=len(seen)).astype(np.float64)
    occur = tokens > 0
    occur[list(exclude)] = False
    return seen[occur], tokens[occur], loss[occur]


def _bands(
    count: NDArray[np.int64], edges: Sequence[int], counts: Values, exclude: Collection[int]
) -> list[tuple[int, int | None, NDArray[np.bool_]]]:
    """(low, high, which words are inside) for each band."""
    ends = band_ends(edges, counts, exclude)
    band = np.searchsorted([low for low, _ in ends], count, side="right") - 1
    return [(low, high, band == i) for i, (low, high) in enumerate(ends)]


def _array(values: Values) -> NDArray[np.generic]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
        return values.numpy()
    return np.asarray(values)
