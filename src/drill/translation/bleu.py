"""How close translations are to those of a person: BLEU and chrF, as sacrebleu computes them.

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

OF_LANGUAGES = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""Languages that ``13a``, the default, does not suit."""

EXTRAS = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""Packages that a tokenizer needs besides sacrebleu."""


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
    tokenised: bool = False,
    language: str = "de",
    split_compounds: bool = False,
    tokenize: str | None = None,
) -> Scores:
    """Scores of translations against one reference each, both plain text and in the same order.

        corpus_scores(["Der Hund schläft."], ["Der Hund schläft fest."], tokenised=True)

    Args:
        hypotheses: translations.
        references: as many.
        tokenised: also BLEU over ``words(line, language)``, unsmoothed, which is what
            multi-bleu.perl gives for text so tokenised. The paper's 27.3 to 28.1 are of this kind.
        language: of the translations.
        split_compounds: for that, hyphens are words. The 27.3 of the first Transformer was scored
            so, which adds some tenths.
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
    metrics = sacrebleu().metrics
    cut_by = tokenizer_of(language, tokenize)
    # Forced, the library has no advice on text that ends in " .", as if tokenised already.
    bleu, chrf = metrics.BLEU(tokenize=cut_by, force=True), metrics.CHRF()
    both = (list(hypotheses), [list(references)])
    scores: dict[str, Any] = {}
    if tokenised:
        plain = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
        cut = [
            [" ".join(words(line, language, split_compounds=split_compounds)) for line in lines]
            for lines in (hypotheses, references)
        ]
        scores["tokenised_bleu"] = plain.corpus_score(cut[0], [cut[1]]).score
        how = tokenizer_name(language, split_compounds=split_compounds)
        signature = str(plain.get_signature()).replace("tok:none", f"tok:{how}")
        scores["tokenised_signature"] = signature
    return Scores(
        lines=len(hypotheses),
        bleu=bleu.corpus_score(*both).score,
        signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(*both).score,
        chrf_signature=str(chrf.get_signature()),
        **scores,
    )


def tokenizer_of(language: str, tokenize: str | None = None) -> str:
    """What BLEU is cut by: ``tokenize``, or what a target language needs."""
    usual = OF_LANGUAGES.get(language.lower().replace("_", "-").split("-")[0], TOKENIZERS[0])
    chosen = tokenize or usual
    if chosen not in TOKENIZERS:
        raise DataError(f"tokenize must be one of {', '.join(TOKENIZERS)}, got {chosen!r}")
    try:
        sacrebleu().metrics.BLEU(tokenize=chosen)  # only constructing one shows what is missing
    except RuntimeError:
        raise DataError(
            f"{chosen}: needs more than sacrebleu; pip install '{EXTRAS[chosen]}', or take char"
        ) from None
    return chosen


def sacrebleu() -> Any:
    """The library, which is optional."""
    return import_optional("sacrebleu", "BLEU and chrF need", "sacrebleu")
