"""Train a translator in a run folder, and load it again."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from drill.data import (
    DataError,
    Filters,
    Pairs,
    ParallelText,
    Subwords,
    cache_folder,
    encode_pairs,
    read_parallel_corpus,
)
from drill.data.catalog import SPLITS
from drill.data.optional_packages import check_packages
from drill.data.parallel.pairs import KEEP_ALL, pairs_checksum, target_counts
from drill.errors import RunFolderError
from drill.files import read_json
from drill.models.translator import Translator
from drill.training.device import pick_device
from drill.training.distributed import World
from drill.training.optim import ScheduledOptimizer
from drill.training.options import TranslationOptions
from drill.training.precision import matmul_precision
from drill.training.run.environment import Start
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import check_resume, with_text
from drill.training.run.summary import run_summary
from drill.training.run.weights import (
    Weights,
    WeightsInfo,
    by_any_kernels,
    fill,
    read_weights,
    settings_of,
)
from drill.training.settings import TRANSLATION, Settings
from drill.translation.bleu import Scores
from drill.translation.build import (
    dry_run,
    packages_of,
    pairs,
    translation_start,
    translator,
)
from drill.translation.evaluate import best_translations, evaluate_translator
from drill.translation.search.decoding import Search
from drill.translation.train import TranslationTask


def start_translator(
    settings: Settings,
    run: RunFolder,
    optimizer: ScheduledOptimizer,
    device: torch.device,
    world: World,
    data_progress: Any,
    on_start: Callable[[str], None] | None,
) -> Start:
    """Check the settings of a translator, read its pairs and build it."""
    begun = check_resume(settings, run)
    check_packages(f"the recipe {settings.recipe} needs", *packages_of(settings))
    source, subwords = None, None  # the run of init_from
    if settings.init_from is not None and not run.last.exists():
        source = translation_start(settings, settings.init_from)
        subwords = Subwords.load(source.subwords)
    elif begun:
        subwords = Subwords.load(run.subwords)
    words = settings.subwords["size"] if subwords is None else len(subwords)
    dry_run(settings, world, words)
    if on_start is not None:
        on_start(run_summary(settings, run, device, world))
    if not world.is_main:
        world.barrier()  # the first process learns and caches what the others read
    data = pairs(settings, subwords, data_progress)
    if world.is_main:
        world.barrier()
    torch.manual_seed(settings.training["seed"])
    if settings.init_from is None:
        counts = target_counts(data.train, len(data.subwords)).tolist()
    else:  # the weights were trained for these
        counts = _counts(run if source is None else source, data.subwords)
    model = translator(settings, len(data.subwords), lambda: counts, device)
    checksums = {split: pairs_checksum(getattr(data, split)) for split in SPLITS}
    environment: dict[str, Any] = {"pairs_of": checksums, "filtered": data.train.filtered}
    remark = None
    if source is not None:
        tensors, info = read_weights(source, None)
        fill(model, tensors, source)
        environment["init_from"] = {
            "folder": str(source.path.resolve()),
            "weights": info.weights,
            "weights_fingerprint": info.fingerprint,
        }
        remark = f"starts from the {info.weights} weights of {source.path}, with its subwords"
    options = TranslationOptions(**settings.training)
    task = TranslationTask(model, data, run, optimizer, options, world)

    def save() -> None:
        data.subwords.save(run.subwords)
        run.write_text(run.target_counts, json.dumps(counts) + "\n")

    size = f"{len(data.train):,} pairs, {len(data.subwords):,} subwords"
    filtered = None
    if len(data.train) < data.train.filtered["pairs"]:
        filtered = f"filters: {data.train.describe_filtered()}"
    return Start(task, save, size, (filtered, remark), environment)


@dataclass(frozen=True)
class TranslationRun:
    """A trained translator and what it was trained on."""

    folder: RunFolder
    settings: Settings
    subwords: Subwords
    model: Translator
    origin: WeightsInfo

    @property
    def weights(self) -> Weights:
        return self.origin.weights

    def split(self, name: str) -> tuple[ParallelText, Pairs]:
        """Text and ids of a split; no other text is read. DataError if it has changed since.

        Ids of ``train`` are those of its pairs that have passed the filters. The text is not
        cached: that of ``train`` is large.

        Args:
            name: "train", "valid" or "test".

        Returns:
            The text and its ids.
        """
        data = with_text(self.settings, self.folder).data
        text: ParallelText = getattr(read_parallel_corpus(**data, splits=[name]), name)
        filters = Filters(**self.settings.filters) if name == "train" else KEEP_ALL
        pairs = encode_pairs(text, self.subwords, filters, cache_folder())
        recorded = (self.folder.read_environment() or {}).get("pairs_of") or {}
        if recorded.get(name) not in (None, pairs_checksum(pairs)):
            raise DataError(
                f"{self.folder.path}: was trained on other texts than "
                f"{self.settings.data['corpus']} holds now; restore them"
            )
        return text, pairs

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam_size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> list[str]:
        """Translate lines.

        Args:
            lines: sentences of the source language.
            beam_size: as in training by default; 1 is greedy.
            progress: called with the lines done and their number.
            options: more fields of ``Search``; the length penalty is training's unless given.

        Returns:
            The best translation of each line.
        """
        with self.search(beam_size, **options) as search:
            return best_translations(self.model, self.subwords, list(lines), search, progress)

    def bleu(self, split: str = "test", *, beam_size: int | None = None, **options: Any) -> Scores:
        """Translate a split and score it against its references.

        Args:
            split: "valid" or "test".
            beam_size: as in training by default; 1 is greedy.
            options: more fields of ``Search``.

        Returns:
            BLEU and chrF with their signatures.
        """
        language = self.settings.data["target"]
        with self.search(beam_size, **options) as search:
            arguments = (self.model, self.subwords, *self.split(split), search)
            return evaluate_translator(*arguments, language=language).scores

    @contextmanager
    def search(
        self, beam_size: int | None = None, *, precision: str | None = None, **options: Any
    ) -> Iterator[Search]:
        """A block with a search as in training.

        Args:
            beam_size: as in training by default; 1 is greedy.
            precision: of products in the block; as in training by default.
            options: more fields of ``Search``; the length penalty is training's unless given.

        Returns:
            A context manager.
        """
        training = self.settings.training
        if options.get("length_penalty") is None:
            options["length_penalty"] = training["length_penalty"]
        device = next(self.model.parameters()).device
        chosen: Any = precision or training["precision"]
        with matmul_precision(chosen, device) as autocast:
            yield Search(beam_size=beam_size or training["beam_size"], autocast=autocast, **options)


def load_translator(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> TranslationRun:
    """The translator of a run in eval mode.

    Args:
        weights: by default the averaged ones if they were better, else the best, else the last.
    """
    run = RunFolder(folder)
    settings = settings_of(run, TRANSLATION)
    subwords = Subwords.load(run.subwords)
    counts = partial(_counts, run, subwords)
    model = translator(by_any_kernels(settings), len(subwords), counts, pick_device(device))
    tensors, origin = read_weights(run, weights)
    fill(model, tensors, run)
    return TranslationRun(run, settings, subwords, model, origin)


def _counts(run: RunFolder, subwords: Subwords) -> list[int]:
    """How often each label occurs in the training text."""
    counts = read_json(run.target_counts, "counts")
    if not isinstance(counts, list) or len(counts) != len(subwords):
        raise RunFolderError(
            f"must have a count for each of {len(subwords)} subwords",
            key=str(run.target_counts),
            hint="restore it from a copy",
        )
    return counts
