"""Training in a run folder: whatever settings ask for, begun or gone on with."""

import logging
import shlex
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from drill.build_language_model import encoded_text, language_model, rehearse, rule
from drill.build_translation import packages_of, rehearse_translation, train_translation
from drill.checkpoint import load_into
from drill.config import TRANSLATION, Settings, does_not_run
from drill.crowd import warn_of_spinning
from drill.data import DataError
from drill.data.packages import refuse_lacking
from drill.interrupts import pass_on
from drill.machine import pick_device
from drill.models import LanguageModel
from drill.opening import few_updates, no_better_than_guessing, opening, share_of_unknown, sizes
from drill.optim import Rule
from drill.parallel import World, world
from drill.precision import autocast_dtype
from drill.progress import Progress
from drill.progress_lines import ProgressLines
from drill.provenance import forget_idle_lives, keep_environment, leave_ended
from drill.resuming import has_begun, refuse_spoiling
from drill.run_folder import RunFolder
from drill.run_loading import settings_of, vocabulary_of
from drill.steps import TRAINING_LOG, ways, why_not_recorded
from drill.training import Outcome, train
from drill.translation_training import TranslationOutcome


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


def refuse_faults(settings: Settings, folder: Path | str, made: Collection[Path] = ()) -> None:
    """What ``train_run`` would refuse before it reads a text: of several runs, before the first.

    ``made`` are folders that will be there by then.
    """
    run = RunFolder(folder)
    if not refuse_spoiling(settings, run) and settings.start is not None:
        start = Path(settings.start)
        if start.resolve() not in {each.resolve() for each in made}:
            settings_of(RunFolder(start))
    if settings.task == TRANSLATION:
        refuse_lacking(f"the recipe {settings.recipe} needs", *packages_of(settings))
        rehearse_translation(settings, World(), settings.subwords["size"])
    else:
        rehearse(settings)


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
    text, ids, vocabulary = encoded_text(settings, data_progress if processes.first else None)
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
    except ValueError as error:
        raise does_not_run(settings, error) from None
