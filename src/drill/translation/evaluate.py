"""Evaluate a translator on a parallel text: loss, BLEU, chrF, exact matches.

    loss = 1/M sum_t -log p(y_t | y_<t, x)        perplexity = exp(loss)

M counts every target token and one ``<end>`` a sentence. There is no label smoothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drill.data import PairBatches, Pairs, ParallelText, Subwords
from drill.data.parallel.moses_words import LANGUAGES
from drill.files import OnProgress
from drill.models.translator import Translator
from drill.training.precision import autocast_to, check_nan, evaluating, sum_dtype
from drill.training.state import Score
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.inference import translate
from drill.translation.search.decoding import Search
from drill.translation.step import sum_loss_options

# -- loss -----------------------------------------------------------------------------------------


@torch.no_grad()
def translation_loss(
    model: Translator,
    pairs: Pairs,
    *,
    max_tokens: int = 8192,
    autocast: torch.dtype | None = None,
    progress: OnProgress | None = None,
) -> Score:
    """The loss of all target tokens, ``<end>`` included; NaN raises FloatingPointError.

    Args:
        max_tokens: of a batch, padding included. It affects speed only; a longer pair is a batch of
            its own.
    """
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=sum_dtype(device), device=device)
    tokens = done = 0
    with evaluating(model), autocast_to(device, autocast), model.layer.cached_labels():
        for batch in PairBatches(pairs, max_tokens, long_alone=True).epoch(0):
            if progress is not None:
                progress(done, len(pairs))
            done += len(batch.indices)
            parts = (batch.source, batch.target_in, batch.target_out)
            total += model.loss(*(part.to(device) for part in parts), **sum_loss_options(0.0))
            tokens += batch.target_tokens
    check_nan("translation_loss", total)
    return Score(total.item(), tokens)


# -- translations and their scores ----------------------------------------------------------------


@dataclass(frozen=True)
class TranslationResult:
    """Loss, scores and translations of a text; ``exact`` is the share equal to the reference."""

    fit: Score
    scores: Scores
    exact: float
    hypotheses: tuple[str, ...]


def evaluate_translator(
    model: Translator,
    subwords: Subwords,
    text: ParallelText,
    pairs: Pairs,
    search: Search,
    *,
    language: str = "de",
    tokenize: str | None = None,
    progress: OnProgress | None = None,
) -> TranslationResult:
    """Translate ``text`` and score the translations.

    Args:
        pairs: the ids of ``text``, line by line.
        language: of the target. Tokenised BLEU needs its tokenizer, and is left out without one.
        tokenize: see ``corpus_scores``.
        progress: also called while the loss is computed, with no line done.
    """

    def count(*_: int) -> None:
        if progress is not None:
            progress(0, len(text))

    limit = 2 * search.batch_tokens  # by default that of translation_loss
    fit = translation_loss(model, pairs, max_tokens=limit, autocast=search.autocast, progress=count)
    hypotheses = best_translations(model, subwords, text.source, search, progress)
    scores = corpus_scores(
        hypotheses,
        text.target,
        word_bleu=language in LANGUAGES,
        language=language,
        tokenize=tokenize,
    )
    exact = sum(map(str.__eq__, hypotheses, text.target)) / len(text)
    return TranslationResult(fit, scores, exact, tuple(hypotheses))


def best_translations(
    model: Translator,
    subwords: Subwords,
    lines: Sequence[str],
    search: Search,
    progress: OnProgress | None = None,
) -> list[str]:
    """The best translation of each line; ``progress`` is called for each batch and at the end."""

    def count(done: int) -> None:
        if progress is not None:
            progress(done, len(lines))

    best = [ranked[0].text for ranked in translate(model, subwords, lines, search, progress=count)]
    count(len(lines))
    return best
