"""From settings to a translator, its data and its runs; of language models other files do it.

settings = recipe("mt-demo")
outcome = train_run(settings, "runs/mt-demo")  # of drill.build
run = load_translation("runs/mt-demo")
run.model, run.subwords
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drill.build_language_model import output_layer, rule
from drill.config import TRANSLATION, Settings, does_not_run, makes_no_model
from drill.data import (
    GENERATED,
    PAD,
    DataError,
    Filters,
    Pairs,
    ParallelText,
    Subwords,
    TranslationData,
    cache_folder,
    encode_pairs,
    learnt_subwords,
    pairs_checksum,
    read_parallel_corpus,
    read_parallel_split,
    refuse_missing_pairs,
    translation_data,
)
from drill.data.encoded_pairs import KEEP_ALL
from drill.data.packages import refuse_lacking
from drill.encoders import Transformer
from drill.layers import SampledSoftmax
from drill.machine import pick_device
from drill.opening import left_out, opening, sizes
from drill.parallel import World
from drill.precision import autocast_dtype
from drill.progress import Progress
from drill.provenance import keep_environment, leave_ended
from drill.recipes import NAME, SettingsError
from drill.resuming import has_begun, with_text
from drill.run_folder import RunFolder, RunFolderError
from drill.run_loading import Origin, Weights, by_any_kernels, load_weights, settings_of
from drill.steps import TRAINING_LOG
from drill.translation_start import ranks_labels, translation_start
from drill.translation_steps import own_batches, translation_ways, why_not_captured
from drill.translation_training import TranslationOutcome, train_translator
from drill.translator import Translator
from drill.weightless import weightless

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
    width, shared = options.pop("width"), options.pop("shared")
    try:
        source = nn.Embedding(words, width)
        target = source if shared else nn.Embedding(words, width)
        transformer = Transformer(source, target, **options, pad=PAD, init_embeddings=True)
        layer = output_layer(settings.layer, target, transformer.output_size, counts)
        return Translator(transformer, layer).to(device)
    except DataError:  # of counts, whose sentence says it all
        raise
    except (ValueError, TypeError) as error:
        raise makes_no_model(settings, error) from None


def rehearse_translation(settings: Settings, processes: World, words: int) -> None:
    """Build the rule, and the model of so many subwords without its memory: faults show before a
    text is read."""
    refuse_missing_pairs(*(settings.data[key] for key in ("corpus", "source", "target")))
    rule(settings)
    own_batches(settings.training["accumulate"], processes)
    with weightless():
        model = translator(settings, words, lambda: [1] * words, "meta")
    if isinstance(model.layer, SampledSoftmax) and settings.training["label_smoothing"]:
        raise SettingsError(
            "training.label_smoothing: needs the probabilities of all labels, which a sampled "
            "layer does not compute; set it to 0"
        )


def packages_of(settings: Settings, *, text: bool = True, scores: bool = True) -> list[str]:
    """What has to be installed for a translator, its ``text`` and the ``scores`` of it."""
    packages = ["tokenizers"]
    if scores:
        packages.append("sacrebleu")
    if text and settings.data["corpus"] == GENERATED:
        packages += ["num2words", "babel"]
    return packages


def refuse_unready(
    folder: Path | str, work: str, *, text: bool = True, scores: bool = True
) -> None:
    """DataError where ``work`` on a run needs packages that are not installed; names them all."""
    needed = packages_of(settings_of(RunFolder(folder)), text=text, scores=scores)
    refuse_lacking(f"{work} {folder} needs", *needed)


def train_translation(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    processes: World,
    progress: Callable[[Progress], None] | None,
    data_progress: Any,
    opened: Callable[[str], None] | None,
) -> TranslationOutcome:
    """What ``train_run`` does for these settings."""
    begun = has_begun(settings, run, processes)
    refuse_lacking(f"the recipe {settings.recipe} needs", *packages_of(settings))
    start, kept = None, None
    if settings.start is not None and not run.last.exists():
        start = translation_start(settings, settings.start)
        kept = start.subwords
    elif begun:
        kept = Subwords.load(run.subwords)
    words = settings.subwords["size"] if kept is None else len(kept)
    rehearse_translation(settings, processes, words)
    if opened is not None:
        opened(opening(settings, run, device, processes))
    if not processes.first:
        processes.wait()  # the first process learns and caches what the others read
    data = pairs(settings, kept, data_progress if processes.first else None)
    if processes.first:
        processes.wait()
    torch.manual_seed(settings.training["seed"])
    counts: list[int] = data.target_counts().tolist()
    if settings.start is not None and ranks_labels(settings):
        ranked = (run, settings) if start is None else (start.folder, start.settings)
        counts = _counts(*ranked, data.subwords)
    model = translator(settings, len(data.subwords), lambda: counts, device)
    begins = None if start is None else start.load_into(model)
    found: list[str] = []
    if processes.first and not leave_ended(run, settings):
        data.subwords.save(run.subwords)
        run.write_text(run.target_counts, json.dumps(counts) + "\n")
        found = _ways(settings, model, device, processes)
        more: dict[str, Any] = {"pairs": data.checksum, "pairs_of": data.checksums}
        more["filtered"] = asdict(data.train.report)
        if begins is not None:
            more["start"] = begins
        keep_environment(run, settings, model, device, processes, found, **more)
        run.write_text(run.recipe, settings.to_toml())
    if opened is not None:
        text = f"{len(data.train):,} pairs, {len(data.subwords):,} subwords"
        dropped = left_out(data.train.report, settings.filters)
        remark = None if start is None else start.remark()
        opened(sizes(settings, run, model, text, dropped, remark))
    if found and device.type == "cuda":
        training_log.info("training on %s: %s", device, "; ".join(found))
    return train_translator(
        model,
        data,
        run,
        rule(settings),
        **settings.training,
        world=processes,
        progress=progress,
    )


def _ways(
    settings: Settings, model: Translator, device: torch.device, processes: World
) -> list[str]:
    """Which kernels are used, how batches and beams are made, and why."""
    given = settings.training
    obstacle = why_not_captured(given["capture"], given["compile"], device, processes.size)
    autocast = autocast_dtype(given["precision"], device)
    size, batches = given["max_tokens"], own_batches(given["accumulate"], processes)
    try:
        return translation_ways(
            model, obstacle, size, autocast, given["compile"], batches, processes.size
        )
    except ValueError as error:
        raise does_not_run(settings, error) from None


@dataclass(frozen=True)
class TranslationRun:
    """A trained translator and what it was trained on."""

    folder: RunFolder
    settings: Settings
    subwords: Subwords
    model: Translator
    origin: Origin

    @property
    def weights(self) -> Weights:
        return self.origin.weights

    @cached_property
    def data(self) -> TranslationData:
        """Texts and ids of the run; refuses texts that are not the run's."""
        return _data(self.folder, self.settings, self.subwords)

    def split(self, name: str) -> tuple[ParallelText, Pairs]:
        """Text and ids of a split as in ``data``; no other text is read.

        Ids of ``train`` are of those of its pairs that have passed the filters; its text, which is
        large, is kept nowhere but by who asks for it.
        """
        told = json.loads(self.folder.environment.read_bytes()).get("pairs_of")
        if told is None:  # runs of old know their texts as a whole alone
            told = self.data.checksums
        text = read_parallel_split(name, **with_text(self.settings, self.folder).data)
        filters = Filters(**self.settings.filters) if name == "train" else KEEP_ALL
        found = encode_pairs(text, self.subwords, filters, cache_folder())
        if told[name] != pairs_checksum(found):
            raise _other_texts(self.folder, self.settings)
        return text, found


def load_translation(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> TranslationRun:
    """The translator of a run in eval mode: the averaged weights where they are better, the best
    ones, or the last where none are best yet."""
    run = RunFolder(folder)
    settings = settings_of(run)
    if settings.task != TRANSLATION:
        raise RunFolderError(
            f"{run.path}: holds a language model, not a translator; use `drill generate`, or "
            "load_run in Python"
        )
    subwords = Subwords.load(run.subwords)
    place = pick_device(device) if isinstance(device, str) else device
    counts = partial(_counts, run, settings, subwords)
    model = translator(by_any_kernels(settings), len(subwords), counts, place)
    return TranslationRun(run, settings, subwords, model, load_weights(model, run, weights))


def _counts(run: RunFolder, settings: Settings, subwords: Subwords) -> list[int]:
    """How often each label is asked for in training; runs of old have not written it down."""
    if not run.target_counts.exists():
        if settings.start is not None:  # the counts may be those of the run it started from
            raise RunFolderError(f"{run.target_counts}: is missing; restore it from a copy")
        told: list[int] = _data(run, settings, subwords).target_counts().tolist()
        return told
    try:
        found = json.loads(run.target_counts.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or [type(count) for count in found] != [int] * len(subwords):
        raise RunFolderError(
            f"{run.target_counts}: does not hold a count for each of {len(subwords)} subwords; "
            "restore it from a copy, or remove it where the training text is at hand"
        )
    return found


def _data(run: RunFolder, settings: Settings, subwords: Subwords) -> TranslationData:
    data = pairs(with_text(settings, run), subwords)
    if json.loads(run.environment.read_bytes()).get("pairs") != data.checksum:
        raise _other_texts(run, settings)
    return data


def _other_texts(run: RunFolder, settings: Settings) -> DataError:
    return DataError(
        f"{run.path}: was trained on other texts than {settings.data['corpus']} holds now; restore "
        "them"
    )
