"""From settings to a language model, its text and its optimizer.

ids, vocabulary = corpus(settings)
model = language_model(settings, vocabulary)
build_optimizer(settings)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from drill.data import Corpus, Ids, Vocabulary, cache_folder, check_corpus, read_corpus
from drill.errors import SettingsError
from drill.language_modeling.untie import check_untie
from drill.layers import MatrixLayer, OutputLayer
from drill.models import ENCODERS, Encoder
from drill.models.language_model import LanguageModel
from drill.recipes.reader import NAME
from drill.training.build import build_optimizer, output_layer
from drill.training.device import meta_init
from drill.training.settings import Settings, makes_no_model

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


def dry_run(settings: Settings) -> None:
    """Build optimizer and model on the meta device: bad settings fail before a text is read."""
    check_corpus(settings.data["corpus"])
    build_optimizer(settings)
    with meta_init():
        model = _model(settings, STAND_IN, lambda: [1] * STAND_IN)
    try:
        check_adversarial(settings.training["adversarial"], model.layer)
        _check_windows(settings, model.encoder)
        if settings.training["untie_at"] is not None:
            check_untie(model.layer)
            if settings.optimizer.get("average_from") is not None:
                raise ValueError("untie_at and optimizer.average_from exclude each other")
    except ValueError as error:
        raise SettingsError(f"[training]: {error}") from None


def check_adversarial(adversarial: float, layer: OutputLayer) -> None:
    """Raise ValueError for adversarial softmax with a layer that has none."""
    if adversarial != 0.0 and not isinstance(layer, MatrixLayer):
        raise ValueError(
            f"adversarial is for layers of one matrix, not for {type(layer).__name__}; leave it "
            "at 0, or take another layer"
        )


def _check_windows(settings: Settings, encoder: Encoder) -> None:
    """Raise ValueError for options that an encoder with, or without, a state does not have."""
    given = settings.training
    if encoder.carries_state:
        if given["compile"]:
            raise ValueError("compile is for encoder.name hf; LSTMs have kernels of their own")
        return
    if given["bptt"] > settings.encoder["context_length"]:
        raise ValueError(
            f"bptt is at most encoder.context_length {settings.encoder['context_length']}, "
            f"not {given['bptt']}"
        )
    if given["state_reset"] != 0.0:
        raise ValueError("state_reset is for encoders that carry a state; leave it at 0")


def _model(settings: Settings, words: int, counts: Callable[[], list[int]]) -> LanguageModel:
    encoder = dict(settings.encoder)
    kind, width = ENCODERS[encoder.pop(NAME)], encoder.pop("embedding_dim")
    try:
        embedding = nn.Embedding(words, width)
        built = kind(embedding, **encoder)
        layer = output_layer(settings.layer, embedding, built.output_size, counts)
        return LanguageModel(built, layer)
    except ImportError as error:
        raise SettingsError(str(error)) from None
    except (ValueError, TypeError) as error:
        raise makes_no_model(settings, error) from None
