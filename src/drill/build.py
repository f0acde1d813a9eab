"""From settings to objects, and from a run folder back to its model: only here both are known.

settings = recipe("demo-drill", ["training.epochs=2"])
outcome = train_run(settings, "runs/demo-drill")
run = load_run("runs/demo-drill")
run.model, run.vocabulary
"""

import inspect
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from drill.checkpoint import copy_into, fingerprint, load, load_into
from drill.config import OVER, TRANSLATION, Settings, makes_no_model, saved, wraps
from drill.crowd import warn_of_spinning
from drill.data import (
    Corpus,
    DataError,
    Ids,
    Vocabulary,
    cache_folder,
    read_corpus,
    refuse_missing,
)
from drill.encoders import ENCODERS
from drill.interrupts import pass_on
from drill.layers import LAYERS, OutputLayer
from drill.machine import pick_device
from drill.models import LanguageModel
from drill.opening import few_updates, no_better_than_guessing, opening, share_of_unknown, sizes
from drill.optim import RULES, Rule
from drill.parallel import World, world
from drill.precision import autocast_dtype
from drill.progress import Progress
from drill.progress_lines import ProgressLines
from drill.provenance import forget_idle_lives, keep_environment, leave_ended
from drill.recipes import NAME, SettingsError
from drill.resuming import has_begun, with_text
from drill.run_folder import RunFolder, RunFolderError
from drill.standing import under
from drill.steps import TRAINING_LOG, ways, why_not_recorded
from drill.training import Outcome, train
from drill.translation_training import TranslationOutcome
from drill.weightless import weightless

FINETUNE_LENGTH_SEED = 331  # of the published finetuning, whatever the seed of the run
FINETUNE_LENGTH_ROOM = 10  # how far beyond bptt its segments may be

STAND_IN = 2**20  # words of a vocabulary that is not known yet

Weights = Literal["averaged", "best", "last"]
"""``averaged``, of translators, where they are better than the best single ones."""

logger = logging.getLogger("drill")


def corpus(settings: Settings, progress: Any = None) -> tuple[Ids, Vocabulary]:
    """The encoded splits and the vocabulary; ids are cached by what they hold."""
    _, ids, vocabulary = _encoded_text(settings, progress)
    return ids, vocabulary


def _encoded_text(settings: Settings, progress: Any = None) -> tuple[Corpus, Ids, Vocabulary]:
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


# -- runs -----------------------------------------------------------------------------------------


def train_run(
    settings: Settings,
    folder: Path | str,
    *,
    device: torch.device | str = "auto",
    progress: Callable[[Progress], None] | None = None,
    data_progress: Any = None,
    opened: Callable[[str], None] | None = None,
    quiet: bool = False,
    pass_on_signals: bool = True,
) -> Outcome | TranslationOutcome:
    """Train in ``folder``, from the beginning or from where a run of these settings stopped.

    The outcome is that of ``train`` or, for a translator, that of ``train_translator``.

    progress  is told how far training is, a few times a second
    opened    is told what will be trained, once all settings are checked, and of what size, once
              the data is read
    quiet     says nothing; else, where both of these are None, lines on stderr do

    Ctrl-C saves everything and is a KeyboardInterrupt then, which says where the run stopped and
    how it goes on; SIGTERM saves and then ends the process, as ever. Without ``pass_on_signals``
    an unfinished outcome tells of them, which has no test: that is for callers who look at it.
    """
    place = pick_device(device) if isinstance(device, str) else device
    if place.type == "cpu" and opened is None and not quiet:
        warn_of_spinning(torch.get_num_threads())
    if progress is None and opened is None and not quiet:
        lines = ProgressLines()
        progress, opened = lines.show, lines.say
    if place.type == "cuda":
        torch.cuda.set_device(place)
    run = RunFolder(folder)
    train_task: Callable[..., Outcome | TranslationOutcome] = train_language_model
    if settings.task == TRANSLATION:
        from drill.build_translation import train_translation  # which is built on this module

        train_task = train_translation
    with world(place) as processes:
        told = (progress, data_progress, opened if processes.first else None)
        with run.locked() if processes.first else nullcontext():
            outcome = train_task(settings, run, place, processes, *told)
            if processes.first:
                forget_idle_lives(run)
    if outcome.interrupted and pass_on_signals:
        pass_on(outcome.signal, _interrupted(outcome, run))
    return outcome


def _interrupted(outcome: Outcome | TranslationOutcome, run: RunFolder) -> str:
    if outcome.finished:
        return f"{run.path}: has ended all the same; the same call of train_run gives its outcome"
    return (
        f"{run.path}: stopped in epoch {outcome.epoch}; all is saved: the same call of train_run "
        f"goes on, or drill train {shlex.quote(str(run.path))}"
    )


def train_language_model(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    processes: World,
    progress: Callable[[Progress], None] | None,
    data_progress: Any,
    opened: Callable[[str], None] | None,
) -> Outcome:
    begun = has_begun(settings, run, processes)
    rehearse(settings)
    if opened is not None:
        opened(opening(settings, run, device, processes))
    text, ids, vocabulary = _encoded_text(settings, data_progress if processes.first else None)
    if begun and vocabulary_of(run) != vocabulary:
        raise DataError(
            f"{run.path}: its vocabulary is not that of {settings.data['corpus']} any more; the "
            "text has changed, so train under another name"
        )
    torch.manual_seed(settings.training["seed"])
    model = language_model(settings, vocabulary, device)
    if settings.start is not None and not run.last.exists():
        start = RunFolder(settings.start)
        if vocabulary_of(start) != vocabulary:
            raise DataError(f"{start.path}: was trained with another vocabulary; start elsewhere")
        load_into(model, start.best)
    trains_by = rule(settings)
    if processes.first and not leave_ended(run, settings):
        vocabulary.save(run.vocabulary)
        found = _ways(settings, model, trains_by, processes)
        keep_environment(run, settings, model, device, processes, found)
        run.write_text(run.recipe, settings.to_toml())
    if opened is not None:
        size = f"{len(ids.train):,} tokens, {len(vocabulary):,} words"
        cut_off = (settings.data["minimum_count"], settings.data["maximum_size"])
        remarks = (
            share_of_unknown(text, vocabulary, ids, *cut_off),
            few_updates(settings, len(ids.train)),
        )
        opened(sizes(settings, run, model, size, *remarks))
    outcome = train(
        model,
        ids,
        run,
        trains_by,
        **settings.training,
        world=processes,
        progress=progress,
    )
    if processes.first and outcome.test is not None:
        remark = no_better_than_guessing(outcome.test.perplexity, len(vocabulary))
        if remark is not None:
            logging.getLogger(TRAINING_LOG).warning(remark)
    return outcome


def _ways(settings: Settings, model: LanguageModel, trains_by: Rule, processes: World) -> list[str]:
    """Which kernels are used and how steps are made, and why."""
    given = settings.training
    trains_by.begin(model.named_parameters())  # what it can do depends on what it changes
    obstacle = why_not_recorded(
        model, trains_by, given["capture"], processes.size, given["micro_batch"]
    )
    batch = processes.own_columns(given["batch_size"])
    device = next(model.parameters()).device
    autocast = autocast_dtype(given["precision"], device)
    try:
        return ways(model, obstacle, batch, given["bptt"], autocast)
    except ValueError as error:  # encoder.impl or layer.encoder names what does not run here
        raise SettingsError(f"the recipe {settings.recipe}: {error}") from None


def finetuning(run: Path | str) -> Settings:
    """Settings that go on from the best weights of a run with averaged SGD from the first step.

    Segment lengths are bounded and have a seed of their own; training ends by the rule that
    starts averaging in NT-ASGD; only weights better than the given ones are kept.
    """
    folder = RunFolder(run)
    if not folder.recipe.exists():
        raise RunFolderError(
            f"{folder.path}: holds no run (no recipe.toml); name a folder that `drill train` made"
        )
    settings = saved(folder.recipe)
    if settings.task == TRANSLATION:
        raise SettingsError(
            f"{folder.path}: holds a translator, and finetuning is for language models; go on with "
            f"it by a larger training.epochs, or on another text by drill train {folder.recipe} "
            f"--name NAME --set start={folder.path} --set data.corpus=FOLDER"
        )
    if settings.optimizer[NAME] == "adamw":
        raise SettingsError(
            f"{folder.path}: was trained with adamw, whose rate tells nothing about that of "
            "averaged SGD; finetune runs of nt-asgd, asgd or sgd"
        )
    settings = with_text(settings, folder)
    kept = {key: settings.optimizer[key] for key in ("lr", "weight_decay", "clip")}
    return Settings(
        recipe=f"{settings.recipe}-finetune",
        start=str(folder.path.resolve()),
        data=settings.data,
        encoder=settings.encoder,
        layer=settings.layer,
        optimizer={NAME: "asgd", **kept},
        training={
            **settings.training,
            "length_seed": FINETUNE_LENGTH_SEED,
            "length_cap": settings.training["bptt"] + FINETUNE_LENGTH_ROOM,
            "max_minutes": None,  # the run it starts from may have had a limit of its own
            "patience": 5,
            "baseline": True,
        },
    )


@dataclass(frozen=True)
class Origin:
    """Which weights of a run a model has.

    weights      of which kind
    when         {"epoch": 12}, {"step": 8000} or, of a mean, {"steps": [7000, 8000]}; empty where
                 a file of weights does not tell
    fingerprint  equal for equal weights, bit for bit
    """

    weights: Weights
    when: Mapping[str, Any]
    fingerprint: str

    def row(self) -> dict[str, Any]:
        """What a row of evaluations.jsonl says of it."""
        when = {f"weights_{key}": value for key, value in self.when.items()}
        return {"weights": self.weights, **when, "weights_fingerprint": self.fingerprint}


@dataclass(frozen=True)
class Run:
    """A trained model and what it was trained on."""

    folder: RunFolder
    settings: Settings
    vocabulary: Vocabulary
    model: LanguageModel
    origin: Origin

    @property
    def weights(self) -> Weights:
        return self.origin.weights

    @cached_property
    def ids(self) -> Ids:
        """The encoded corpus; refuses one that is not the run's."""
        ids, vocabulary = corpus(with_text(self.settings, self.folder))
        if vocabulary != self.vocabulary:
            raise DataError(
                f"{self.folder.path}: was trained on another text than "
                f"{self.settings.data['corpus']} is now; restore the text"
            )
        return ids


def settings_of(run: RunFolder) -> Settings:
    if not run.path.is_dir() or not run.recipe.exists():
        raise RunFolderError(
            f"{run.path}: holds no run (no recipe.toml); name a folder of `drill train`"
        )
    return saved(run.recipe)


def vocabulary_of(run: RunFolder) -> Vocabulary:
    if not run.vocabulary.exists():
        raise RunFolderError(
            f"{run.vocabulary}: is missing, so nobody knows which word an id is; restore it from a "
            "copy, or remove the folder and train again"
        )
    return Vocabulary.load(run.vocabulary)


def task_of(folder: Path | str) -> str:
    """What the run of a folder was trained for."""
    return settings_of(RunFolder(folder)).task


def load_run(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> Run:
    """The model of a run in eval mode: the best weights, or the last where none are best yet."""
    run = RunFolder(folder)
    settings = settings_of(run)
    if settings.task == TRANSLATION:
        raise RunFolderError(
            f"{run.path}: holds a translator, not a language model; use `drill translate`, or "
            "load_translation in Python"
        )
    vocabulary = vocabulary_of(run)
    place = pick_device(device) if isinstance(device, str) else device
    model = language_model(settings, vocabulary, place)
    return Run(run, settings, vocabulary, model, load_weights(model, run, weights))


def load_weights(model: nn.Module, run: RunFolder, weights: Weights | None) -> Origin:
    """Load these, or the best there are, and set eval mode; gives which they are."""
    files: dict[Weights, Path] = {"averaged": run.averaged, "best": run.best, "last": run.last}
    there: list[Weights] = [name for name, path in files.items() if path.exists()]
    chosen: Weights = weights or [*there, "last"][0]
    path = files[chosen]
    tensors, numbers = load(path, _other_weights([name for name in there if name != chosen]))
    if chosen == "last":  # they lie among what a resume needs
        tensors = under("model/", tensors)
    copy_into(dict(model.named_parameters()), tensors, str(path))
    model.eval()
    when = {"averaged": "steps", "best": "epoch", "last": "step"}[chosen]
    at = {when: numbers[when]} if when in numbers else {}
    return Origin(chosen, at, fingerprint(tensors))


def _other_weights(there: Sequence[Weights]) -> str:
    """What can be done about weights that are damaged."""
    return " or ".join(["restore it from a copy", *(f"take --weights {each}" for each in there)])
