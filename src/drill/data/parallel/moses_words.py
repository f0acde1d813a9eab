"""The Moses tokenizer (sacremoses): words of a translation, for tokenised BLEU and accuracy."""

from functools import cache
from typing import Any

from drill.data.optional_packages import import_optional
from drill.errors import DataError, check_value

LANGUAGES = ("de", "en")


def words(line: str, language: str = "de") -> list[str]:
    """The tokens that ``tokenizer.perl`` of Moses gives, without its escapes such as ``&quot;``.

    words("Er sagte: „Das kostet 1,50 Euro.“") ->
    ["Er", "sagte", ":", "„", "Das", "kostet", "1,50", "Euro", ".", "“"]
    """
    check_value(language in LANGUAGES, "language", f"one of {LANGUAGES}", language, DataError)
    tokens: list[str] = _tokenizer(language).tokenize(line, escape=False)
    return tokens


@cache
def _tokenizer(language: str) -> Any:
    return _library().MosesTokenizer(lang=language)


def _library() -> Any:
    return import_optional("sacremoses", "words of a text need", "sacremoses")


def tokenizer_name(language: str) -> str:
    return f"moses-{language}-sacremoses-{_library().__version__}"
