"""BLEU and chrF of translations against references, as sacrebleu computes them.

BLEU = min(1, e^(1 - r/c)) (p_1 p_2 p_3 p_4)^(1/4), in percent

p_n is the share of the n-grams of c words that are also in the references of r words. Quote a score
with its signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drill.data.optional_packages import import_optional
from drill.data.parallel.moses_words import tokenizer_name, words
from drill.errors import DataError

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none")
"""Tokenizers of sacrebleu for BLEU that need no network."""


@dataclass(frozen=True)
class Scores:
    """Of a whole text, from 0 to 100, each with its signature, which says how it was computed.

    Attributes:
        bleu: of plain text, cut into words as the WMT campaigns do ("13a"; Chinese, Japanese and
            Korean by their own tokenizers): the one to report.
        chrf: F-score of character n-grams up to 6, recall weighing twice; no words needed.
        tokenised_bleu: of ``words`` of both, as older papers report it; it comes out higher. None
            unless asked for.
    """

    lines: int
    bleu: float
    signature: str
    chrf: float
    chrf_signature: str
    tokenised_bleu: float | None = None
    tokenised_signature: str | None = None


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    word_bleu: bool = False,
    language: str = "de",
    tokenize: str | None = None,
) -> Scores:
    """Scores of translations against one reference each, both plain text and in the same order.

        corpus_scores(["Der Hund schläft."], ["Der Hund schläft fest."], word_bleu=True)

    Args:
        hypotheses: translations.
        references: as many.
        word_bleu: also ``tokenised_bleu``, over ``words(line, language)`` and unsmoothed, which is
            what multi-bleu.perl gives for such words. The paper's 27.3 to 28.1 are of this kind.
        language: of the translations.
        tokenize: one of ``TOKENIZERS`` for BLEU; by default that of ``language``.

    Returns:
        BLEU and chrF with their signatures.
    """
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(lines, str):
            raise TypeError(f"corpus_scores: {name} must be a list of lines, got one string")
    if not hypotheses or len(hypotheses) != len(references):
        raise DataError(
            "corpus_scores: there must be one reference for every translation, empty lines too; "
            f"got {len(hypotheses)} translations and {len(references)} references"
        )
    bleu, chrf = bleu_metric(language, tokenize), sacrebleu().metrics.CHRF()
    texts = (list(hypotheses), [list(references)])
    scores: dict[str, Any] = {}
    if word_bleu:
        plain = bleu_metric(language, "none", smooth_method="none")
        as_words = [
            [" ".join(words(line, language)) for line in lines]
            for lines in (hypotheses, references)
        ]
        scores["tokenised_bleu"] = plain.corpus_score(as_words[0], [as_words[1]]).score
        signature = str(plain.get_signature()).replace(
            "tok:none", f"tok:{tokenizer_name(language)}"
        )
        scores["tokenised_signature"] = signature
    return Scores(
        lines=len(hypotheses),
        bleu=bleu.corpus_score(*texts).score,
        signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(*texts).score,
        chrf_signature=str(chrf.get_signature()),
        **scores,
    )


def bleu_metric(language: str, tokenize: str | None = None, **options: Any) -> Any:
    """sacrebleu's BLEU with its tokenizer for a target language, or another one by name."""
    if tokenize not in (None, *TOKENIZERS):
        raise DataError(f"tokenize must be one of {', '.join(TOKENIZERS)}, got {tokenize!r}")
    # With both it warns of what it would rather take.
    trg_lang = "" if tokenize else language.lower().replace("_", "-").split("-")[0]
    try:
        # Forced, the library has no advice on text that ends in " .", as if tokenised already.
        return sacrebleu().metrics.BLEU(tokenize=tokenize, trg_lang=trg_lang, force=True, **options)
    except RuntimeError as error:  # Japanese and Korean need more packages, which it names
        raise DataError(f"{' '.join(str(error).split())}; or tokenize by char") from None


def sacrebleu() -> Any:
    """The library, which is optional."""
    return import_optional("sacrebleu", "BLEU and chrF need", "sacrebleu")
