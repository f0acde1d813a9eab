"""From settings to a translator, its data and its runs; of language models other files do it.

settings = recipe("mt-demo")
outcome = train_run(settings, "runs/mt-demo")  # of drill.tasks
run = load_translation("runs/mt-demo")
run.model, run.subwords
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drill.data import (
    GENERATED,
    PAD,
    Filters,
    Subwords,
    TranslationData,
    cache_folder,
    check_parallel_corpus,
    learnt_subwords,
    read_parallel_corpus,
    translation_data,
)
from drill.data.extras import check_packages
from drill.errors import DrillError, SettingsError
from drill.layers import SampledSoftmax
from drill.models import Transformer
from drill.models.translator import Translator
from drill.recipes.reader import NAME
from drill.training.device import check_memory, meta_init
from drill.training.distributed import World
from drill.training.loop import TRAINING_LOG
from drill.training.run.folder import RunFolder
from drill.training.run.weights import settings_of
from drill.training.settings import Settings, build_optimizer, makes_no_model, output_layer
from drill.translation.step import own_batches

training_log = logging.getLogger(TRAINING_LOG)


def pairs(
    settings: Settings, subwords: Subwords | None = None, progress: Any = None
) -> TranslationData:
    """Texts and ids, by these subwords or by ones learnt now; both are cached by what they hold."""
    text = read_parallel_corpus(**settings.data)
    if subwords is None:
        subwords = learnt_subwords(
            text.train, cache_folder(), **settings.subwords, progress=progress
        )
    return translation_data(
        text,
        subwords,
        Filters(**settings.filters),
        cache_folder(),
        progress,
        language=settings.data["target"],
    )


def translator(
    settings: Settings,
    words: int,
    counts: Callable[[], list[int]],
    device: torch.device | str = "cpu",
) -> Translator:
    """A fresh model over so many subwords; its numbers follow from torch's seed."""
    options = dict(settings.encoder)
    options.pop(NAME)
    width, shared = options.pop("embedding_dim"), options.pop("shared")
    try:
        source = nn.Embedding(words, width)
        target = source if shared else nn.Embedding(words, width)
        transformer = Transformer(source, target, **options, pad=PAD, init_embeddings=True)
        layer = output_layer(settings.layer, target, transformer.output_size, counts)
        return Translator(transformer, layer).to(device)
    except DrillError:  # of counts
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise makes_no_model(settings, error) from None


def rehearse_translation(settings: Settings, processes: World, words: int) -> None:
    """Build optimizer and model on the meta device: bad settings fail before a text is read."""
    check_parallel_corpus(*(settings.data[key] for key in ("corpus", "source", "target")))
    build_optimizer(settings)
    own_batches(settings.training["gradient_accumulation_steps"], processes)
    with meta_init():
        model = translator(settings, words, lambda: [1] * words, "meta")
    check_memory(model.parameters())
    if isinstance(model.layer, SampledSoftmax) and settings.training["label_smoothing"]:
        raise SettingsError(
            "training.label_smoothing: needs the probabilities of all labels, which a sampled "
            "layer does not compute; set it to 0"
        )


def packages_of(settings: Settings, *, text: bool = True, scores: bool = True) -> list[str]:
    """What has to be installed for a translator, its ``text`` and the ``scores`` of it."""
    packages = ["tokenizers"]
    if scores:
        packages += ["sacrebleu", "sacremoses"]
    if text and settings.data["corpus"] == GENERATED:
        packages += ["num2words", "babel"]
    return packages


def check_ready(folder: Path | str, work: str, *, text: bool = True, scores: bool = True) -> None:
    """DataError where ``work`` on a run needs packages that are not installed; names them all."""
    needed = packages_of(settings_of(RunFolder(folder)), text=text, scores=scores)
    check_packages(f"{work} {folder} needs", *needed)
