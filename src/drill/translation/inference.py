"""Translate lines of text with a trained translator.

for hypotheses in translate(model, subwords, ["Two cats."]): print(hypotheses[0].text)
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from drill.data import END, Subwords
from drill.errors import SettingsError, require
from drill.models.translator import Translator
from drill.translation.search.beam_search import beam_search
from drill.translation.search.decoding import OnProgress, Search, cached_head
from drill.translation.search.sampling import sample

logger = logging.getLogger("drill")

LINES_PER_BLOCK = 512


@dataclass(frozen=True)
class Translation:
    """A translation as text; ``score`` is what it was ranked by, ``log_prob`` a sum over tokens."""

    text: str
    score: float
    log_prob: float


def translate(
    model: Translator,
    subwords: Subwords,
    lines: Iterable[str],
    search: Search = Search(),  # noqa: B008 - it is frozen
    *,
    lines_per_block: int = LINES_PER_BLOCK,
    progress: OnProgress | None = None,
) -> Iterator[list[Translation]]:
    """Translate lines. Labels are encoded once: do not train the model meanwhile.

    Args:
        model: the translator.
        subwords: the ones it was trained with.
        lines: sentences of the source language.
        search: options of the search.
        lines_per_block: lines that are read and translated together: more are faster, fewer come
            sooner.
        progress: called before every batch with the number of lines done.

    Returns:
        An iterator over the translations of each line, in their order, the best translation first.
        A line without words has one empty translation.
    """
    if isinstance(lines, str):
        raise TypeError("translate: lines must be a list of strings; pass [line]")
    wanted = "at least 1"
    require(lines_per_block >= 1, "translate", "lines_per_block", wanted, lines_per_block)
    left = iter(lines)
    blocks = iter(lambda: list(islice(left, lines_per_block)), [])
    return chain.from_iterable(translate_blocks(model, subwords, blocks, search, progress))


def translate_blocks(
    model: Translator,
    subwords: Subwords,
    blocks: Iterable[list[str]],
    search: Search,
    progress: OnProgress | None = None,
) -> Iterator[list[list[Translation]]]:
    """``translate`` of blocks of lines, each as soon as it is there."""
    if not search.sampled and search.beam_size > len(subwords):
        raise SettingsError(
            f"must be at most the {len(subwords)} subwords, got {search.beam_size}", key="beam_size"
        )
    with cached_head(model) as head:
        read = searched = 0  # lines, and those of them with words
        for block in blocks:
            sources = _sources(subwords, block, search.max_source, read)

            def count(done: int, before: int = read) -> None:
                if progress is not None:
                    progress(before + done)

            ids = list(sources.values())
            if search.sampled:
                results = sample(model, ids, search, first=searched, head=head, progress=count)
            else:
                results = beam_search(model, ids, search, head=head, progress=count)
            translations: list[list[Translation]] = [[Translation("", 0.0, 0.0)] for _ in block]
            for index, hypotheses in zip(sources, results, strict=True):
                translations[index] = []
                for hyp in hypotheses:
                    # A model may generate any byte, also line breaks.
                    text = subwords.decode(hyp.ids).replace("\r", " ").replace("\n", " ")
                    translations[index].append(Translation(text, hyp.score, hyp.log_prob))
            yield translations
            read, searched = read + len(block), searched + len(sources)


def _sources(subwords: Subwords, lines: list[str], most: int, read: int) -> dict[int, list[int]]:
    """Ids by index, of lines with words; ``read`` lines came before."""
    indices = [index for index, line in enumerate(lines) if line.strip()]
    encoded = subwords.encode_lines([lines[index] for index in indices])
    for index, ids in zip(indices, encoded, strict=True):
        if len(ids) > most:
            logger.warning(
                "line %d has %d subwords, of which the first %d are read",
                read + index + 1,
                len(ids),
                most,
            )
    return {index: [*ids[:most], END] for index, ids in zip(indices, encoded, strict=True)}
