"""From settings to a language model and its text; from a run to the settings of its finetuning.

ids, vocabulary = corpus(settings)
model = language_model(settings, vocabulary)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from drill.data import Ids, Vocabulary, WordFeatures, WordNet, cache_folder, read_corpus
from drill.data.catalog import check_corpus
from drill.data.text.corpora import WORDS
from drill.data.text.word_features import GLOSS
from drill.errors import SettingsError, check_value
from drill.language_modeling.untie import check_untie
from drill.layers import FeatureBags, LabelSource
from drill.models import ENCODERS
from drill.models.language_model import LanguageModel
from drill.recipes.reader import NAME
from drill.training.build import (
    argument_errors,
    build_layer,
    check_optimizer,
    init_bias,
    model_errors,
)
from drill.training.device import meta_init
from drill.training.optim import OPTIMIZERS, RunScheduled
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import with_text
from drill.training.run.weights import settings_of
from drill.training.settings import LANGUAGE_MODEL, TRANSLATION, Settings

FINETUNE_LENGTH_SEED = 331  # of the published finetuning, whatever the seed of the run
FINETUNE_LENGTH_MARGIN = 10  # how far beyond bptt its segments may be
STAND_IN = 2**20  # words of a vocabulary that is not known yet


def corpus(settings: Settings) -> tuple[Ids, Vocabulary]:
    """The encoded splits and the vocabulary; ids are cached on disk by content."""
    text, vocabulary = read_corpus(**settings.data)
    return text.encode(vocabulary, cache_folder()), vocabulary


def described(settings: Settings, vocabulary: Vocabulary) -> Vocabulary:
    """With entries of WordNet for words and held-out words, if their vectors are made from them."""
    if GLOSS not in settings.labels["source"]:
        return vocabulary
    dictionary = WordNet()
    words = (*vocabulary.words, *vocabulary.held_out)
    descriptions = {word: text for word in words if (text := dictionary.describe(word)) is not None}
    return vocabulary.extended([], descriptions)


def language_model(
    settings: Settings, vocabulary: Vocabulary, device: torch.device | str = "cpu"
) -> LanguageModel:
    """A new model, initialised from torch's random state."""
    counts = vocabulary.counts.tolist
    return _model(settings, label_source(settings, vocabulary), counts).to(device)


def label_source(settings: Settings, vocabulary: Vocabulary) -> nn.Embedding | LabelSource:
    """What gives words their vectors, as input and as labels."""
    width = settings.encoder["embedding_dim"]
    if settings.labels["source"] == "table":
        return nn.Embedding(len(vocabulary), width)
    features = WordFeatures(vocabulary, **settings.labels)
    bags = features.of(vocabulary.words, vocabulary.descriptions)
    return cast(LabelSource, FeatureBags(bags, len(features), width))


def dry_run(settings: Settings, begun: bool = False) -> None:
    """Build optimizer and model on the meta device: bad settings fail before a text is read.

    A run that has ``begun``, or starts from another one, has its dictionary entries already.
    """
    check_corpus(settings.data["corpus"])
    if GLOSS in settings.labels["source"] and not begun and settings.init_from is None:
        WordNet()  # raises DataError if it is missing
    if settings.labels["source"] != "table" and settings.data["tokenizer"] != WORDS:
        raise SettingsError("is for words, not subwords", key="labels.source")
    if settings.init_from is not None and not begun:
        _check_tied(RunFolder(settings.init_from))
    with meta_init():
        embedding = nn.Embedding(STAND_IN, settings.encoder["embedding_dim"])
        model = _model(settings, embedding, lambda: [1] * STAND_IN)
    check_optimizer(settings, model)
    try:
        _check_training(settings, model)
    except ValueError as error:
        raise SettingsError(f"[training]: {error}") from None


def _check_training(settings: Settings, model: LanguageModel) -> None:
    """Raise ValueError for options that do not fit the model, or each other."""
    training, encoder = settings.training, model.encoder
    averages = settings.optimizer.get("average_from") is not None
    if training["compile"] and not encoder.can_compile:
        raise ValueError(f"compile must be false: {type(encoder).__name__} is not compiled")
    if not encoder.carries_state:
        longest, bptt = settings.encoder["context_length"], training["bptt"]
        check_value(bptt <= longest, "bptt", f"at most encoder.context_length {longest}", bptt)
        if training["state_reset"] != 0.0:
            raise ValueError("state_reset is for encoders that carry a state; leave it at 0")
    if training["unigram_norms"] and settings.labels["source"] != "table":
        raise ValueError("unigram_norms is for labels.source table; leave it out")
    if training["fsdp"]:
        if encoder.carries_state:
            raise ValueError("fsdp is for encoder.name hf; leave it out")
        for key in ("untie_at", "micro_batch"):
            if training[key]:
                raise ValueError(f"fsdp and {key} exclude each other")
        if settings.optimizer[NAME] not in ("adamw", "muon") or averages:
            raise ValueError("fsdp is for optimizer.name adamw or muon, without average_from")
    if training["untie_at"] is not None:
        check_untie(model.layer)
        if model.layer.matrix.embedding is not encoder.embedding:
            name = type(model.layer).__name__
            raise ValueError(f"untie_at is of no use to {name}, which is untied; leave it out")
        if not issubclass(OPTIMIZERS[settings.optimizer[NAME]], RunScheduled):
            raise ValueError(
                "untie_at is for optimizer.name adamw, muon or sgd, not for "
                f"{settings.optimizer[NAME]}; leave it out"
            )
        early = averages and settings.optimizer["average_from"] < training["untie_at"]
        if early or settings.optimizer["average_patience"] is not None:
            raise ValueError(
                "untie_at needs averages that begin later: optimizer.average_from of at least "
                "untie_at, and no average_patience"
            )


def _model(
    settings: Settings,
    embedding: nn.Embedding | LabelSource,
    counts: Callable[[], list[int]],
) -> LanguageModel:
    encoder = {key: value for key, value in settings.encoder.items() if key != "embedding_dim"}
    encoder_class = ENCODERS[encoder.pop(NAME)]
    with model_errors(settings):
        with argument_errors("encoder", encoder):
            encoder_module = encoder_class(embedding, **encoder)
        layer = build_layer(settings.layer, embedding, encoder_module.output_widths, counts)
        init_bias(layer, settings, counts)
        if scale := settings.training["unigram_norms"]:
            _init_norms(layer.matrix.label_weight, counts(), scale)
        return LanguageModel(encoder_module, layer)


@torch.no_grad()
def _init_norms(E: Tensor, counts: Sequence[float], scale: float) -> None:
    """Norms of the rows of E that grow with frequency (Herold, Gao & Ney, WMT 2018)."""
    seen = E.new_tensor(counts).clamp(min=1)
    E.mul_(scale * torch.log1p(seen)[:, None] / E.norm(dim=1, keepdim=True))


def _check_tied(folder: RunFolder) -> None:
    if settings_of(folder, LANGUAGE_MODEL).training["untie_at"] is not None:
        raise SettingsError(
            f"{folder.path}: ends with a matrix of its own (training.untie_at), from which no "
            "other run starts; use a run without it"
        )


def finetune_settings(run: Path | str) -> Settings:
    """Settings that continue from the best weights of a run with averaged SGD.

    Segment lengths are capped and have their own seed; training stops by the criterion of NT-ASGD;
    only weights better than the initial ones are saved.
    """
    folder = RunFolder(run)
    settings = settings_of(folder)
    if settings.task == TRANSLATION:
        raise SettingsError(
            f"{folder.path}: is a translator, and finetuning is for language models; continue it "
            f"with a larger training.epochs, or on another text with drill train {folder.recipe} "
            f"--name NAME --set init_from={folder.path} --set data.corpus=FOLDER"
        )
    _check_tied(folder)
    if settings.optimizer[NAME] in ("adamw", "muon"):
        raise SettingsError(
            f"{folder.path}: was trained with {settings.optimizer[NAME]}, whose rate does not fit "
            "averaged SGD; finetune runs of nt-asgd, asgd or sgd"
        )
    return derive_finetune_settings(with_text(settings, folder), str(folder.path.resolve()))


def derive_finetune_settings(settings: Settings, start: str) -> Settings:
    """The settings that finetune a run in the folder ``start``, trained with ``settings``."""
    keys = ("lr", "weight_decay", "max_grad_norm", "map_lr_scale")
    shared = {key: settings.optimizer[key] for key in keys}
    return Settings(
        recipe=f"{settings.recipe}-finetune",
        init_from=start,
        data=settings.data,
        encoder=settings.encoder,
        labels=settings.labels,
        layer=settings.layer,
        optimizer={NAME: "asgd", **shared},
        training={
            **settings.training,
            "length_seed": FINETUNE_LENGTH_SEED,
            "length_cap": settings.training["bptt"] + FINETUNE_LENGTH_MARGIN,
            "max_minutes": None,  # the run it starts from may have had a limit of its own
            "patience": 5,
            "validate_first": True,
        },
    )
