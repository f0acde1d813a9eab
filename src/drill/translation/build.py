"""From settings to a translator and its data; weights of one run as the start of another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drill.data import PAD, Filters, Subwords, cache_folder, read_parallel_corpus
from drill.data.optional_packages import check_packages
from drill.data.parallel.corpora import GENERATED, check_parallel_corpus
from drill.data.parallel.pairs import TranslationData, translation_data
from drill.data.subwords import cached_subwords
from drill.errors import SettingsError
from drill.models import Transformer
from drill.models.translator import Translator
from drill.recipes.reader import NAME
from drill.training.build import (
    argument_errors,
    build_layer,
    check_optimizer,
    init_bias,
    model_errors,
)
from drill.training.device import meta_init
from drill.training.distributed import World
from drill.training.run.folder import RunFolder
from drill.training.run.weights import settings_of
from drill.training.settings import INIT_FROM, TRANSLATION, Settings

OF_THE_MODEL = ("subwords", "encoder", "layer")
"""Settings that a run shares with the one it starts from."""

MAY_DIFFER = {"dropout", "attention_dropout", "locked", "dropout_at", "init_range", "samples"}
MAY_DIFFER |= {"proposal", "impl"}
"""Except those that only training or the choice of kernels reads."""


def pairs(
    settings: Settings, subwords: Subwords | None = None, progress: Any = None
) -> TranslationData:
    """Texts and ids, with these subwords or with newly learnt ones; both are cached by content."""
    text = read_parallel_corpus(**settings.data)
    if subwords is None:
        lines = [*text.train.source, *text.train.target]
        subwords = cached_subwords(lines, cache_folder(), **settings.subwords, progress=progress)
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
    """A new model over ``words`` subwords, initialised from torch's random state."""
    options = dict(settings.encoder)
    options.pop(NAME)
    width, shared = options.pop("embedding_dim"), options.pop("shared")
    with model_errors(settings):
        source = nn.Embedding(words, width)
        target = source if shared else nn.Embedding(words, width)
        with argument_errors("encoder", options):
            transformer = Transformer(source, target, **options, pad=PAD, init_embeddings=True)
        layer = build_layer(settings.layer, target, (transformer.output_size,), counts)
        init_bias(layer, settings, counts)
        return Translator(transformer, layer).to(device)


def dry_run(settings: Settings, world: World, words: int) -> None:
    """Build optimizer and model on the meta device: bad settings fail before a text is read."""
    check_parallel_corpus(*(settings.data[key] for key in ("corpus", "source", "target")))
    key = "gradient_accumulation_steps"
    world.per_process(settings.training[key], f"training.{key}")
    with meta_init():
        model = translator(settings, words, lambda: [1] * words, "meta")
    check_optimizer(settings, model)
    if settings.training["label_smoothing"] and not model.layer.takes_label_smoothing:
        raise SettingsError(
            "training.label_smoothing: needs the probabilities of all labels, which a sampled "
            "layer does not compute; set it to 0"
        )


def packages_of(settings: Settings, *, text: bool = True) -> list[str]:
    """Optional packages for a translator, its scores and its ``text``."""
    packages = ["tokenizers", "sacrebleu", "sacremoses"]
    if text and settings.data["corpus"] == GENERATED:
        packages += ["num2words", "babel"]
    return packages


def check_ready(folder: Path | str, work: str, *, text: bool = True) -> None:
    """DataError naming all packages that ``work`` on a run needs and that are not installed."""
    needed = packages_of(settings_of(RunFolder(folder)), text=text)
    check_packages(f"{work} {folder} needs", *needed)


# -- init_from: start with the weights of another run ----------------------------------------------


def translation_start(settings: Settings, path: Path | str) -> RunFolder:
    """The run to start from; SettingsError if its weights do not fit these settings."""
    folder = RunFolder(path)
    saved = settings_of(folder, TRANSLATION)
    changes = [c for c in saved.differences(settings) if _of_the_model(c.partition(":")[0])]
    if changes:
        changes.sort(key=lambda c: not c.partition(":")[0].endswith(f".{NAME}"))
        raise SettingsError(
            f"{INIT_FROM}: {folder.path} has a model with other settings "
            f"({'; '.join(changes[:3])}); use its settings, or start from another run"
        )
    if not (folder.averaged.exists() or folder.best.exists()):
        raise SettingsError(
            f"{INIT_FROM}: {folder.path} has no best weights; train it up to its first validation"
        )
    return folder


def _of_the_model(key: str) -> bool:
    parts = key.split(".")
    return parts[0] in OF_THE_MODEL and parts[-1] not in MAY_DIFFER
