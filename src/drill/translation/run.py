"""Train a translator in a run folder, and load it again."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from drill.data import (
    DataError,
    Filters,
    Pairs,
    ParallelText,
    Subwords,
    TranslationData,
    cache_folder,
    encode_pairs,
    pairs_checksum,
    read_parallel_split,
)
from drill.data.extras import check_packages
from drill.data.parallel.pairs import KEEP_ALL
from drill.errors import RunFolderError
from drill.models.translator import Translator
from drill.training.device import pick_device
from drill.training.distributed import World
from drill.training.loop import Outcome
from drill.training.options import TranslationOptions
from drill.training.precision import autocast_dtype, matmul_precision
from drill.training.progress import Progress
from drill.training.run.environment import has_ended, run_environment
from drill.training.run.folder import RunFolder
from drill.training.run.resume import has_begun, with_text
from drill.training.run.summary import left_out, run_summary, sizes
from drill.training.run.weights import (
    Weights,
    WeightsInfo,
    by_any_kernels,
    load_weights,
    settings_of,
)
from drill.training.settings import TRANSLATION, Settings, build_optimizer, does_not_run
from drill.translation.bleu import Scores
from drill.translation.build import (
    packages_of,
    pairs,
    rehearse_translation,
    training_log,
    translator,
)
from drill.translation.evaluate import best_translations, translated
from drill.translation.step import own_batches, translation_ways, why_not_captured
from drill.translation.train import train_translator
from drill.translation.translate import Search
from drill.translation.warm_start import ranks_labels, translation_start


def train_translation(
    settings: Settings,
    run: RunFolder,
    device: torch.device,
    processes: World,
    progress: Callable[[Progress], None] | None,
    data_progress: Any,
    on_start: Callable[[str], None] | None,
) -> Outcome:
    """What ``tasks.train`` does for these settings."""
    begun = has_begun(settings, run, processes)
    check_packages(f"the recipe {settings.recipe} needs", *packages_of(settings))
    start, kept = None, None
    if settings.init_from is not None and not run.last.exists():
        start = translation_start(settings, settings.init_from)
        kept = start.subwords
    elif begun:
        kept = Subwords.load(run.subwords)
    words = settings.subwords["size"] if kept is None else len(kept)
    rehearse_translation(settings, processes, words)
    if on_start is not None:
        on_start(run_summary(settings, run, device, processes))
    if not processes.first:
        processes.wait()  # the first process learns and caches what the others read
    data = pairs(settings, kept, data_progress if processes.first else None)
    if processes.first:
        processes.wait()
    torch.manual_seed(settings.training["seed"])
    counts: list[int] = data.target_counts().tolist()
    if settings.init_from is not None and ranks_labels(settings):
        ranked = (run, settings) if start is None else (start.folder, start.settings)
        counts = _counts(*ranked, data.subwords)
    model = translator(settings, len(data.subwords), lambda: counts, device)
    begins = None if start is None else start.load_into(model)
    found: list[str] = []
    if processes.first and not has_ended(run, settings):
        found = _ways(settings, model, device, processes)
        more: dict[str, Any] = {"pairs": data.checksum, "pairs_of": data.checksums}
        more["filtered"] = asdict(data.train.report)
        if begins is not None:
            more["init_from"] = begins
        environment = run_environment(run, settings, model, device, processes, found, **more)

        def describe() -> None:
            data.subwords.save(run.subwords)
            run.write_text(run.target_counts, json.dumps(counts) + "\n")
            run.write_json(run.environment, environment)
            run.write_text(run.recipe, settings.to_toml())

        run.before_first_write(describe)
    if on_start is not None:
        text = f"{len(data.train):,} pairs, {len(data.subwords):,} subwords"
        dropped = left_out(data.train.report, settings.filters)
        remark = None if start is None else start.remark()
        on_start(sizes(settings, run, model, text, dropped, remark))
    if found and device.type == "cuda":
        training_log.info("training on %s: %s", device, "; ".join(found))
    return train_translator(
        model,
        data,
        run,
        build_optimizer(settings),
        TranslationOptions(**settings.training),
        world=processes,
        progress=progress,
    )


def _ways(
    settings: Settings, model: Translator, device: torch.device, processes: World
) -> list[str]:
    """Which kernels are used, how batches and beams are made, and why."""
    given = settings.training
    obstacle = why_not_captured(given["cuda_graphs"], given["compile"], device, processes.size)
    autocast = autocast_dtype(given["precision"], device)
    size, batches = (
        given["max_tokens"],
        own_batches(given["gradient_accumulation_steps"], processes),
    )
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
    origin: WeightsInfo

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
        checksums = (self.folder.read_environment() or {}).get("pairs_of") or self.data.checksums
        text = read_parallel_split(name, **with_text(self.settings, self.folder).data)
        filters = Filters(**self.settings.filters) if name == "train" else KEEP_ALL
        found = encode_pairs(text, self.subwords, filters, cache_folder())
        if checksums.get(name) != pairs_checksum(found):
            raise _other_texts(self.folder, self.settings)
        return text, found

    def translate(
        self, lines: Iterable[str], *, beam_size: int | None = None, **options: Any
    ) -> list[str]:
        """The best translation of each line.

        Args:
            beam_size: as in training by default; 1 is greedy.
            options: more fields of ``Search``.
        """
        with self._search(beam_size, **options) as search:
            return best_translations(self.model, self.subwords, list(lines), search)

    def bleu(self, split: str = "test", *, beam_size: int | None = None, **options: Any) -> Scores:
        """BLEU and chrF of the translations of "valid" or "test"."""
        language = self.settings.data["target"]
        with self._search(beam_size, **options) as search:
            given = (self.model, self.subwords, *self.split(split), search)
            return translated(*given, language=language).scores

    @contextmanager
    def _search(self, beam_size: int | None, **options: Any) -> Iterator[Search]:
        given = self.settings.training
        options = {"length_penalty": given["length_penalty"], **options}
        device = next(self.model.parameters()).device
        with matmul_precision(given["precision"], device) as autocast:
            yield Search(beam=beam_size or given["beam"], autocast=autocast, **options)


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
            "drill.load in Python"
        )
    subwords = Subwords.load(run.subwords)
    place = pick_device(device) if isinstance(device, str) else device
    counts = partial(_counts, run, settings, subwords)
    model = translator(by_any_kernels(settings), len(subwords), counts, place)
    return TranslationRun(run, settings, subwords, model, load_weights(model, run, weights))


def _counts(run: RunFolder, settings: Settings, subwords: Subwords) -> list[int]:
    """How often each label is asked for in training; runs of old have not written it down."""
    if not run.target_counts.exists():
        if settings.init_from is not None:  # the counts may be those of the run it started from
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
    if (run.read_environment() or {}).get("pairs") not in (None, data.checksum):
        raise _other_texts(run, settings)
    return data


def _other_texts(run: RunFolder, settings: Settings) -> DataError:
    return DataError(
        f"{run.path}: was trained on other texts than {settings.data['corpus']} holds now; restore "
        "them"
    )
