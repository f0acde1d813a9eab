"""Dictionary entries of English words, from the files of WordNet 3."""

import os
import re
from functools import cached_property
from pathlib import Path

from drill.errors import DataError
from drill.files import read_bytes

FOLDER = Path("/usr/share/wordnet")  # of Debian's package wordnet-base
SHORTEST = 3  # letters; entries of shorter words are of symbols: "as" is arsenic, "he" helium

ENDINGS = {
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}
"""What an ending of an inflected form becomes in its base form."""


class WordNet:
    """Glosses of words and of their inflected forms.

    Args:
        folder: has ``index.noun``, ``data.noun``, ``noun.exc`` and those of verb, adj and adv. By
            default the environment variable DRILL_WORDNET, or where Debian puts the files.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder or os.environ.get("DRILL_WORDNET") or FOLDER)
        for part in ENDINGS:
            if not (self.folder / f"data.{part}").is_file():
                raise DataError(
                    f"there is no data.{part} of WordNet",
                    key=str(self.folder),
                    hint="install the package wordnet-base, or unpack the dict folder of WordNet 3 "
                    "(https://wordnet.princeton.edu) and set DRILL_WORDNET to it",
                )

    def describe(self, word: str) -> str | None:
        """The gloss of the first sense of each part of speech; None for words without an entry.

        An inflected form has the gloss of its base form and its ending: "... +ies".
        """
        word = word.lower()
        if len(word) < SHORTEST:
            return None
        glosses: dict[str, None] = {}  # each once
        for part in ENDINGS:
            base, mark = self._base(part, word)
            if base is not None:
                glosses[self._gloss(part, base)] = None
                glosses |= {mark: None} if mark else {}
        return "; ".join(glosses) or None

    def _base(self, part: str, word: str) -> tuple[str | None, str]:
        """The form of the word that has an entry, and a mark for what was changed."""
        entries = self._entries[part]
        if word in entries:
            return word, ""
        if (base := self._irregular[part].get(word)) in entries:
            return base, f"+{part}"
        for rule in ENDINGS[part].split():
            ending, _, instead = rule.partition(":")
            base = word.removesuffix(ending) + instead
            if word.endswith(ending) and base in entries:
                return base, f"+{ending}"
        return None, ""

    def _gloss(self, part: str, base: str) -> str:
        data, start = self._data[part], self._entries[part][base]
        line = data[start : data.index(b"\n", start)].decode()
        return re.split(r'; "', line.partition("| ")[2])[0].strip()  # examples are quoted

    @cached_property
    def _data(self) -> dict[str, bytes]:
        return {part: read_bytes(self.folder / f"data.{part}") for part in ENDINGS}

    @cached_property
    def _entries(self) -> dict[str, dict[str, int]]:
        """Word -> where in the data file its first sense is."""
        offsets = {}
        for part in ENDINGS:
            lines = read_bytes(self.folder / f"index.{part}").decode().splitlines()
            rows = (line.split() for line in lines if not line.startswith(" "))  # the licence
            # lemma pos senses p_cnt [pointer symbols: p_cnt] senses tagged [offsets: senses]
            offsets[part] = {row[0]: int(row[-int(row[2])]) for row in rows}
        return offsets

    @cached_property
    def _irregular(self) -> dict[str, dict[str, str]]:
        bases = {}
        for part in ENDINGS:
            lines = read_bytes(self.folder / f"{part}.exc").decode().splitlines()
            bases[part] = dict(line.split()[:2] for line in lines)
        return bases
