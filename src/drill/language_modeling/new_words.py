"""New labels for a trained model.

A model whose ``labels.source`` makes vectors from characters or glosses has a vector for any word.
The bias of a new label is the mean of the others', as in ``layer.resize``.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from drill.data import Vocabulary, WordFeatures, WordNet
from drill.data.text.word_features import GLOSS
from drill.errors import DataError, SettingsError
from drill.layers import FeatureBags
from drill.layers.label_source import resize_rows
from drill.models.language_model import LanguageModel


def new_words_blocker(model: LanguageModel) -> str | None:
    """Why a model has no vectors for new words; None if it has."""
    source, layer = model.encoder.embedding, model.layer
    if not isinstance(source, FeatureBags):
        return "every word has a row of a table; train with labels.source=characters"
    if layer.matrix.embedding is not source:
        return f"{type(layer.matrix).__name__} has a matrix of its own"
    return None


def add_words_to_model(
    model: LanguageModel,
    vocabulary: Vocabulary,
    labels: Mapping[str, Any],
    words: Mapping[str, str],
) -> tuple[LanguageModel, Vocabulary]:
    """A model with vectors for further words, made as the settings ``labels`` say.

    Each has a description; an empty one is looked up in WordNet if it is needed.
    """
    fault = new_words_blocker(model)
    if fault is not None:
        raise SettingsError(f"a new word has no vector: {fault}")
    for word in words:
        if len(word.split()) != 1:
            raise DataError(f"must be words without spaces, got {word!r}", key="words")
    entries = {word: text for word, text in words.items() if text.strip()}
    if entries and GLOSS not in labels["source"]:
        raise SettingsError(
            f"the model makes vectors from {labels['source']}; leave the descriptions out, or "
            "train with labels.source=characters+gloss"
        )
    if GLOSS in labels["source"] and len(entries) < len(words):
        dictionary = WordNet()
        missing = {word: dictionary.describe(word) for word in words if word not in entries}
        entries |= {word: text for word, text in missing.items() if text is not None}
    extended, extended_vocabulary = extend_model(model, vocabulary, labels, [*words], entries)
    source = extended.encoder.embedding
    assert isinstance(source, FeatureBags)
    for word, features in zip(words, source.starts[len(vocabulary) :].diff(), strict=True):
        if features == 0:
            raise DataError(
                f"{word!r} has nothing in common with the words of training by which vectors are "
                f"made ({labels['source']})"
            )
    return extended, extended_vocabulary


def extend_model(
    model: LanguageModel,
    vocabulary: Vocabulary,
    labels: Mapping[str, Any],
    words: Sequence[str],
    descriptions: Mapping[str, str],
) -> tuple[LanguageModel, Vocabulary]:
    """Further labels: vectors from the label source, or the mean of a table's rows."""
    vocabulary = vocabulary.extended(words, descriptions)
    model = copy.deepcopy(model)
    embedding = model.encoder.embedding
    if isinstance(embedding, FeatureBags):
        features = WordFeatures(vocabulary, **labels)
        embedding.extend(features.of(words, vocabulary.descriptions))
    model.layer.resize(len(vocabulary))
    resize_rows("extended", embedding, len(vocabulary), None)  # that of a layer that is not tied
    return model.eval(), vocabulary
