"""From settings to a language model, its text and its rule; layers and rules of translators too.

ids, vocabulary = corpus(settings)
model = language_model(settings, vocabulary)
rule(settings)
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from drill.config import OVER, Settings, makes_no_model, wraps
from drill.data import Corpus, Ids, Vocabulary, cache_folder, read_corpus, refuse_missing
from drill.encoders import ENCODERS
from drill.layers import LAYERS, OutputLayer
from drill.models import LanguageModel
from drill.optim import RULES, Rule
from drill.recipes import NAME, SettingsError
from drill.weightless import weightless

STAND_IN = 2**20  # words of a vocabulary that is not known yet


def corpus(settings: Settings, progress: Any = None) -> tuple[Ids, Vocabulary]:
    """The encoded splits and the vocabulary; ids are cached by what they hold."""
    _, ids, vocabulary = encoded_text(settings, progress)
    return ids, vocabulary


def encoded_text(settings: Settings, progress: Any = None) -> tuple[Corpus, Ids, Vocabulary]:
    """``corpus``, and the text that it is of."""
    text, vocabulary = read_corpus(**settings.data, progress=progress)
    return text, text.encode(vocabulary, cache_folder()), vocabulary


def language_model(
    settings: Settings, vocabulary: Vocabulary, device: torch.device | str = "cpu"
) -> LanguageModel:
    """A fresh model; its numbers follow from torch's seed."""
    return _model(settings, len(vocabulary), vocabulary.counts.tolist).to(device)


def rehearse(settings: Settings) -> None:
    """Build the rule, and the model without its memory: faults show before a text is fetched, and
    a text that is missing before anybody is told that it is trained on."""
    refuse_missing(settings.data["corpus"])
    rule(settings)
    with weightless():
        _model(settings, STAND_IN, lambda: [1] * STAND_IN)


def _model(settings: Settings, words: int, counts: Callable[[], list[int]]) -> LanguageModel:
    encoder = dict(settings.encoder)
    kind, width = ENCODERS[encoder.pop(NAME)], encoder.pop("width")
    try:
        embedding = nn.Embedding(words, width)
        built = kind(embedding, **encoder)
        layer = output_layer(settings.layer, embedding, built.output_size, counts)
        return LanguageModel(built, layer)
    except (ValueError, TypeError) as error:
        raise makes_no_model(settings, error) from None


def output_layer(
    table: dict[str, Any],
    embedding: nn.Embedding,
    hidden_size: int,
    counts: Callable[[], list[int]],
) -> OutputLayer:
    """The layer that a table describes; ``counts`` of labels are asked for where it needs them."""
    options = {key: value for key, value in table.items() if key not in (NAME, OVER)}
    kind: Any = LAYERS[table[NAME]]
    takes = inspect.signature(kind).parameters
    if options.get("hidden_size", hidden_size) is None:
        options["hidden_size"] = hidden_size
    if "counts" in takes:
        options["counts"] = counts()
    if not wraps(kind):
        return kind(embedding, **options)
    # A mixture projects what the encoder gives; others hand it on as it is.
    inner = embedding.embedding_dim if "hidden_size" in takes else hidden_size
    return kind(output_layer(table[OVER], embedding, inner, counts), **options)


def rule(settings: Settings) -> Rule:
    options = dict(settings.optimizer)
    try:
        return RULES[options.pop(NAME)](**options)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"[optimizer]: {error}") from None
