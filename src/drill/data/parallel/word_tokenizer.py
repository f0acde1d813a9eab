"""A line of text as words and signs, the way translations are tokenised before they are compared.

The rules of the Moses tokeniser, without its lists of abbreviations.
"""

import re
from itertools import pairwise

from drill.errors import DataError

LANGUAGES = ("de", "en")

_WORD = re.compile(r"[\w.'`,\-]+|\S")  # \w: letters and digits of all scripts, and the underscore
_DOTS = re.compile(r"\.{2,}")
_COMMA = re.compile(r"(?<!\d),|,(?!\d)")
_HYPHEN = re.compile(r"(?<=\S)-(?=\S)")
_JOINED = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])|(?<=\d)'(?=s)")  # don't, the 1990's
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def words(line: str, language: str = "de", *, split_compounds: bool = False) -> list[str]:
    """The words and signs of a line.

        words("Er sagte: „Das kostet 1,50 Euro.“") ->
        ["Er", "sagte", ":", "„", "Das", "kostet", "1,50", "Euro", ".", "“"]

    - Every sign stands alone, save ``. , ' ` -`` which have rules of their own.
    - Two dots or more are one sign.
    - A comma stands alone unless digits are on both sides.
    - An apostrophe stands alone in German; in English it starts what follows: ``don 't``.
    - The last dot of a word stands alone, unless the word is one letter (``z. B.``), has a dot
      inside (``U.S.``), is a number of one or two digits before another word in German (``3. Mai``)
      or the next word begins with a small letter.
    - A hyphen stays in its word; with ``split_compounds`` it stands alone between the parts, as in
      the evaluation of the first Transformer.
    """
    if language not in LANGUAGES:
        raise DataError(
            f"words: language is one of {', '.join(LANGUAGES)}, not {language!r}; they differ in "
            "apostrophes and ordinal numbers"
        )
    line = _CONTROL.sub("", line)
    line = " ".join(_WORD.findall(line.replace("_", " _ ")))
    line = _DOTS.sub(lambda dots: f" {dots[0]} ", line)
    line = _COMMA.sub(" , ", line)
    if language == "en":
        line = _JOINED.sub(" \0", line)  # marked, so that the next line leaves it
        line = line.replace("'", " ' ").replace("\0", "'")
    else:
        line = line.replace("'", " ' ")
    if split_compounds:
        line = _HYPHEN.sub(" ##AT##-##AT## ", line)
    found: list[str] = []
    for word, following in pairwise([*line.split(), ""]):
        if _dot_stands_alone(word, following, language):
            found += [word[:-1], "."]
        else:
            found.append(word)
    return found


def _dot_stands_alone(word: str, following: str, language: str) -> bool:
    stem = word[:-1]
    if not word.endswith(".") or not stem.strip("."):
        return False
    letters = any(sign.isalpha() for sign in stem)
    abbreviation = letters and ("." in stem or len(stem) == 1)
    ordinal = language == "de" and stem.isdigit() and len(stem) <= 2 and following != ""
    return not (abbreviation or ordinal or following[:1].islower())
