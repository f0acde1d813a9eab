"""Features of words, from which label vectors are made: n-grams of characters, words of a gloss.

E' = A C        E' (V, d): label vectors; A (V, F): which features a word has; C (F, d): their
                vectors, trained
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from drill.data.text.vocabulary import Vocabulary

CHARACTERS, GLOSS, WORD = "characters", "gloss", "word"
NGRAMS = (3, 4)  # lengths, the marks < and > for the ends of the word included
GLOSS_SHARE = 20  # a word of glosses is kept if at most 1 in 20 of them have it,
FEW_GLOSSES = 20  # or at most 20

Source = Literal["table", "characters", "gloss", "characters+gloss"]
Feature = tuple[str, str]  # its kind, and what it is


class WordFeatures:
    """Ids of the features of words.

    The features are those of words that training has seen. One that a single word has says nothing
    about others: it is kept only if it is the whole word, of one or two letters. Words that many
    glosses have (of, the) are not kept either, unless they are endings of an inflected form ("+s",
    see ``wordnet.py``). A word without any has itself as a feature.

    Args:
        vocabulary: the words, with descriptions for glosses.
        source: which features; with "table" every word has itself alone, as in an embedding.
        free_row: every word also has itself as a feature, so a vector of its own.
    """

    def __init__(
        self, vocabulary: Vocabulary, source: Source = "table", free_row: bool = False
    ) -> None:
        self.kinds = (*source.split("+"), *([WORD] if free_row else []))
        seen = [w for w, n in zip(vocabulary.words, vocabulary.counts, strict=True) if n > 0]
        bags = {word: list(self._bags(word, vocabulary.descriptions)) for word in seen}
        words_with = Counter(f for by_kind in bags.values() for bag in by_kind for f in bag)
        most = max(FEW_GLOSSES, len(seen) // GLOSS_SHARE)
        kept = [f for f, words in words_with.items() if self._is_kept(f, words, most)]
        self.ids = {feature: index for index, feature in enumerate(kept)}
        for word, by_kind in bags.items():
            if not any(map(self._known, by_kind)):
                self.ids[WORD, word] = len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, words: Sequence[str], descriptions: Mapping[str, str]) -> list[list[list[int]]]:
        """The ids of the features of each word, by kind."""
        return [[self._known(bag) for bag in self._bags(word, descriptions)] for word in words]

    def _known(self, bag: list[Feature]) -> list[int]:
        return [self.ids[feature] for feature in bag if feature in self.ids]

    def _bags(self, word: str, descriptions: Mapping[str, str]) -> Iterator[list[Feature]]:
        """The features of each kind, each once; the word itself is always the last one."""
        for kind in self.kinds:
            texts: list[str] = []
            if kind == CHARACTERS:
                texts = ngrams(word)
            elif kind == GLOSS:
                texts = re.findall(r"\+?\w+", descriptions.get(word, "").lower())
            itself = [(WORD, word)] if kind == self.kinds[-1] else []
            yield [*dict.fromkeys((kind, text) for text in texts), *itself]

    def _is_kept(self, feature: Feature, words: int, most: int) -> bool:
        """Whether a feature that this many words have is kept; glosses' may have ``most`` words."""
        kind, text = feature
        if kind == WORD:
            return WORD in self.kinds
        if kind == GLOSS:
            return 1 < words <= most or (words > 1 and text.startswith("+"))
        return words > 1 or (text.startswith("<") and text.endswith(">"))


def ngrams(word: str) -> list[str]:
    """``<ca cat at> <cat cat>`` of ``cat``."""
    whole = f"<{word}>"
    return [whole[i : i + n] for n in NGRAMS for i in range(len(whole) - n + 1)]
