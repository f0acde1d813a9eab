"""A translator held against a parallel text: loss, BLEU and chrF, sentences that are exact."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drill.data import Pairs, ParallelText, Subwords
from drill.data.parallel.word_tokenizer import LANGUAGES
from drill.models.translator import Translator
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.loss import TranslationLoss, translation_loss
from drill.translation.translate import Search, translate

Progress = Callable[[int, int], None]
"""Called with the lines that are translated and the lines in all."""


@dataclass(frozen=True)
class Translated:
    """What a text and its translations come to; ``exact`` is the share that equal the reference."""

    fit: TranslationLoss
    scores: Scores
    exact: float
    hypotheses: tuple[str, ...]


def translated(
    model: Translator,
    subwords: Subwords,
    text: ParallelText,
    pairs: Pairs,
    search: Search,
    *,
    language: str = "de",
    tokenize: str | None = None,
    progress: Progress | None = None,
) -> Translated:
    """Translate ``text``, whose ids are ``pairs`` line by line, and score it.

    ``language`` is that of the target: BLEU over tokenised text needs its rules, and is left out
    where there are none. ``tokenize`` is of ``corpus_scores``. ``progress`` may end it by an
    exception, also while the loss is computed, before the first line is translated.
    """

    def count(*_: int) -> None:
        if progress is not None:
            progress(0, len(text))

    most = 2 * search.batch_tokens  # by default what the loss takes alone; less bounds it too
    fit = translation_loss(model, pairs, max_tokens=most, autocast=search.autocast, progress=count)
    hypotheses = best_translations(model, subwords, text.source, search, progress)
    scores = corpus_scores(
        hypotheses,
        text.target,
        tokenised=language in LANGUAGES,
        language=language,
        tokenize=tokenize,
    )
    exact = sum(map(str.__eq__, hypotheses, text.target)) / len(text)
    return Translated(fit, scores, exact, tuple(hypotheses))


def best_translations(
    model: Translator,
    subwords: Subwords,
    lines: Sequence[str],
    search: Search,
    progress: Progress | None = None,
) -> list[str]:
    """The best translation of every line; ``progress`` may end it by an exception.

    It is called before every batch of lines that are searched together, and at the end.
    """

    def count(done: int) -> None:
        if progress is not None:
            progress(done, len(lines))

    best = [found[0].text for found in translate(model, subwords, lines, search, progress=count)]
    count(len(lines))
    return best
