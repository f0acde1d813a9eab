"""The Moses tokenizer (sacremoses): words of a translation, for tokenised BLEU and accuracy."""

import re
from functools import cache
from typing import Any

from drill.data.optional_packages import import_optional
from drill.errors import DataError, check_value

LANGUAGES = ("de", "en")

_HYPHEN = re.compile(r"(?<=\S)-(?=\S)")


def words(line: str, language: str = "de", *, split_compounds: bool = False) -> list[str]:
    """The tokens that ``tokenizer.perl`` of Moses gives, without its escapes such as ``&quot;``.

        words("Er sagte: „Das kostet 1,50 Euro.“") ->
        ["Er", "sagte", ":", "„", "Das", "kostet", "1,50", "Euro", ".", "“"]

    With ``split_compounds`` a hyphen inside a word becomes a token ``##AT##-##AT##``, as in the
    evaluation of the first Transformer.
    """
    check_value(language in LANGUAGES, "language", f"one of {LANGUAGES}", language, DataError)
    found: list[str] = _tokenizer(language).tokenize(line, escape=False)
    if split_compounds:
        return _HYPHEN.sub(" ##AT##-##AT## ", " ".join(found)).split()
    return found


@cache
def _tokenizer(language: str) -> Any:
    return _library().MosesTokenizer(lang=language)


def _library() -> Any:
    return import_optional("sacremoses", "words of a text need", "sacremoses")


def tokenizer_name(language: str, *, split_compounds: bool = False) -> str:
    name = f"moses-{language}-sacremoses-{_library().__version__}"
    return f"{name}-compounds" if split_compounds else name
