"""Two runs on the same text: the difference in loss or BLEU, and that of every word."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from drill.data import EOS, ParallelText, batchify
from drill.data.parallel.moses_words import LANGUAGES
from drill.data.parallel.moses_words import words as split_words
from drill.data.text.corpora import encode_text, read_own_text
from drill.errors import SettingsError
from drill.language_modeling.run import LanguageModelRun
from drill.report.analysis.paired_bootstrap import (
    bleu_difference,
    bleu_statistics,
    corpus_bleu,
    line_losses,
    loss_difference,
    paired_bootstrap,
)
from drill.report.analysis.word_accuracy import matched_words
from drill.translation.run import TranslationRun

BATCH_SIZE, TOKENS_PER_SEQUENCE = 20, 1000  # of a text: larger is faster and loses context

Row = dict[str, Any]
Watch = Callable[[str], AbstractContextManager[Callable[[int, int | None], None]]]
"""The name of a run -> a context in which its progress is shown by calls of what it yields."""


def compare_losses(
    runs: Sequence[LanguageModelRun], text: Path | None, watch: Watch
) -> tuple[Row, list[Row]]:
    """Compare the losses of two language models on a file, by default on the test text.

    Returns:
        Losses per token, their difference with its interval, and a row for each word that differs.
    """
    vocabulary = runs[0].vocabulary
    if vocabulary.words != runs[1].vocabulary.words:
        raise SettingsError(
            f"{runs[1].folder.path} has another vocabulary than {runs[0].folder.path}",
            hint="losses compare over the same words only",
        )
    ids = runs[0].ids.test if text is None else encode_text(read_own_text(text), vocabulary)
    batch = max(1, min(BATCH_SIZE, len(ids) // TOKENS_PER_SEQUENCE))
    losses = []
    for run in runs:
        with watch(run.folder.path.name) as progress:
            token_losses = run.token_losses(ids, batch_size=batch, progress=progress)
        losses.append(token_losses.double().numpy())
    targets = batchify(ids, batch)[1:].t().flatten().numpy()
    lines = line_losses(losses[0], losses[1], targets, vocabulary.ids[EOS])
    difference = paired_bootstrap(lines, loss_difference)
    tokens = np.bincount(targets, minlength=len(vocabulary))
    sums = [np.bincount(targets, weights=each, minlength=len(vocabulary)) for each in losses]
    change = sums[1] - sums[0]
    rows = [
        {
            "word": vocabulary.words[i],
            "seen": int(vocabulary.counts[i]),
            "tokens": int(tokens[i]),
            "a": float(sums[0][i] / tokens[i]),
            "b": float(sums[1][i] / tokens[i]),
            "change": float(change[i]),
        }
        for i in np.flatnonzero(change)
    ]
    a, b = (float(each.mean()) for each in losses)
    return {"kind": "loss", "tokens": len(targets), "a": a, "b": b, **vars(difference)}, rows


def compare_translations(
    runs: Sequence[TranslationRun], text: Path | None, reference: Path | None, watch: Watch
) -> tuple[Row, list[Row]]:
    """Compare two translators on a file and its reference, by default on the test text.

    Returns:
        BLEU, its difference with the interval, and for each word how often it is right.
    """
    data = [run.settings.data for run in runs]
    if any(data[0][side] != data[1][side] for side in ("source", "target")):
        raise SettingsError("the runs translate between different languages")
    language = data[0]["target"]
    if text is None or reference is None:
        pairs = runs[0].split("test")[0]
    else:
        pairs = ParallelText.from_files(text, reference)
    reference_lines = list(pairs.target)
    hypotheses = []
    for run in runs:
        with watch(run.folder.path.name) as progress:
            hypotheses.append(run.translate(pairs.source, progress=progress))
    statistics = [bleu_statistics(each, reference_lines, language) for each in hypotheses]
    difference = paired_bootstrap(np.concatenate(statistics, axis=1), bleu_difference)

    def split_lines(side: Sequence[str]) -> list[list[str]]:
        supported = language in LANGUAGES
        return [[*split_words(line, language)] if supported else line.split() for line in side]

    references = split_lines(reference_lines)
    matched = [matched_words(split_lines(each), references) for each in hypotheses]
    total = matched_words(references, references)
    rows = [
        {
            "word": word,
            "tokens": total[word],
            "a": matched[0][word],
            "b": matched[1][word],
            "change": matched[1][word] - matched[0][word],
        }
        for word in total
    ]
    a, b = (corpus_bleu(each.sum(0)) for each in statistics)
    return {"kind": "bleu", "lines": len(reference_lines), "a": a, "b": b, **vars(difference)}, rows
