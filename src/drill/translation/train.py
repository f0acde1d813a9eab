"""The training loop of translators, read top to bottom.

An update is the gradient of a few batches of pairs, divided by their target tokens. Every epoch,
and every so many updates, the loop validates and keeps the best weights. Every so often all of it
is saved, so that a run which was killed goes on as if nothing had happened.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch

from drill.data import PairBatches, TranslationData
from drill.errors import NothingTrained
from drill.models.translator import Translator
from drill.training.distributed import World
from drill.training.divergence import best_kept, finite, refuse_damaged
from drill.training.loop import AGREE_EVERY, SHOW_EVERY, tell, widest, wrapped
from drill.training.optim import NonMonotone, Rule
from drill.training.options import TranslationOptions
from drill.training.precision import autocast_to, products
from drill.training.progress import Pace, Progress
from drill.training.run.folder import RunFolder
from drill.training.signals import Interrupts
from drill.training.state import Limits, cut_metrics
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import Translated
from drill.translation.loss import TranslationLoss
from drill.translation.state import TranslationPosition, restore, save, tested_before
from drill.translation.step import (
    backward,
    capturing,
    in_updates,
    own_batches,
    replayed,
    why_not_captured,
)
from drill.translation.translate import Search
from drill.translation.validate import Stopped, tested, validated, watching

logger = logging.getLogger("drill")


@dataclass(frozen=True)
class TranslationOutcome:
    """What a run has come to. Unfinished, it was interrupted and can go on.

    ``valid`` is of the best single weights, of a finished run that of the weights it tests. A test
    of an earlier command has no ``hypotheses`` here: they are in the folder.
    """

    finished: bool
    epoch: int
    best_epoch: int
    valid: TranslationLoss | None
    test: Translated | None
    elapsed: float  # seconds of training, resumed or not
    interrupted: bool = False  # by Ctrl-C or SIGTERM, be it too late to leave anything undone
    out_of_time: bool = False  # ended by max_minutes: a larger one goes on
    stopped: bool = False  # ended by patience: validations no longer improve
    signal: int | None = None  # which one; None where another process was interrupted


def train_translator(
    model: Translator,
    data: TranslationData,
    folder: RunFolder,
    rule: Rule,
    options: TranslationOptions,
    *,
    world: World = World(),  # noqa: B008 - it is frozen
    progress: Callable[[Progress], None] | None = None,
) -> TranslationOutcome:
    """Train ``model`` until the first limit, then test its best weights: loss and BLEU.

    Goes on from the last checkpoint of ``folder`` where there is one; of a run that was tested and
    is at a limit it gives what was found then. Ctrl-C and SIGTERM end the step, save and give an
    unfinished outcome; in a validation or in the test they end that, and the next life begins with
    it. A limit that leaves nothing to validate raises NothingTrained.
    """
    corpus_scores(["-"], ["-"])  # a missing package shows now, not at the end
    device = next(model.parameters()).device
    batches = PairBatches(
        data.train,
        options.max_tokens,
        options.seed,
        multiple=options.pad_to,
        rank=world.rank,
        size=world.size,
        subwords=data.subwords,
    )
    own = own_batches(options.accumulate, world)
    limits = Limits(options.epochs, options.updates, options.max_minutes)
    search = Search(beam=options.beam, length_penalty=options.length_penalty)
    rule.begin(model.named_parameters())
    no_loss = torch.zeros((), dtype=widest(device), device=device)
    stopper = None if options.patience is None else NonMonotone(options.patience)
    at = TranslationPosition(len(batches), stopper=stopper, nll=no_loss, text=data.checksum)
    resumed = restore(at, model, rule, folder, world)
    at.clock = world.largest(limits.clock(at))
    ended = folder.test_row() if resumed and at.over(limits) and not at.broken_off else None
    if ended is not None:  # nothing is measured again, and nothing written
        return _kept(at, ended, data, limits)
    _refuse_to_train_nothing(at, limits, folder)
    if cut_metrics(at, folder, world):
        save(at, model, rule, folder, world)
    if not resumed and world.rank > 0:
        torch.manual_seed(options.seed + world.rank)  # every process drops other things
    if options.compile:
        model.transformer.compile(dynamic=True)  # sentences have all lengths
    trained = wrapped(model, world)
    pace = Pace(at, options.epochs)
    pace.restart(at.share(limits))
    agreeing = 1 if world.size == 1 else AGREE_EVERY
    saved = shown = time.monotonic()

    with (
        products(options.precision, device) as autocast,
        Interrupts() as interrupts,
        best_kept(at, folder, world),
    ):
        search = replace(search, autocast=autocast)
        watch = watching(pace, progress, interrupts)
        obstacle = why_not_captured(options.capture, options.compile, device, world.size)
        captured = (
            None if obstacle is not None else capturing(model, options.label_smoothing, autocast)
        )
        if device.type == "cuda" and world.first and options.capture and obstacle is not None:
            logger.warning("batches are launched, not replayed as CUDA graphs: %s", obstacle)
        if not at.over(limits) and world.first:
            folder.averaged.unlink(missing_ok=True)  # of a run that was to be shorter
        who = (at, model, data, rule, limits, world)
        validate = partial(
            validated, *who, search=search, max_tokens=options.max_tokens, watch=watch
        )
        if options.baseline and at.step == 0 and at.best is None:
            at.epoch = 0
            try:
                row = validate(average=1, bleu=options.bleu_every is not None)
            except Stopped:  # the next life begins with it
                at.epoch = 1
                save(at, model, rule, folder, world)
                return _unfinished(at, interrupts)
            tell(folder, world, progress, pace.report(0.0, row | {"kind": "epoch"}))
            at.next_epoch()
            at.validations = 0  # every so many of those that follow have their BLEU
            pace.restart(0.0)
        while not at.over(limits) or at.broken_off:
            model.train()
            updates_left = in_updates(batches.epoch(at.epoch, at.batch), own)
            # An update of nothing comes first where a validation was broken off.
            for update in chain([[]] * at.broken_off, updates_left):
                if update:
                    tokens = int(world.sum(sum(batch.target_tokens for batch in update)))
                    if captured is not None:
                        at.nll += replayed(captured, update, tokens, device)
                    else:
                        with autocast_to(device, autocast):
                            at.nll += backward(
                                trained, model, update, tokens, options.label_smoothing, device
                            )
                    rule.step(1, 1, at.share(limits))
                    at.batch += len(update)
                    at.step += 1
                    at.tokens += tokens

                agreed = at.step % agreeing == 0
                if agreed:
                    at.clock = world.largest(limits.clock(at))
                whole, over = at.batch == len(batches), at.over(limits)
                due = options.validate_every is not None and at.step % options.validate_every == 0
                if whole or over or due or at.broken_off:
                    at.loss = finite(at.mean_loss(world), at, rule, folder)
                    refuse_damaged(at, model, rule, folder)
                    at.tick_training()
                    bleu = (
                        options.bleu_every is not None
                        and (at.validations + 1) % options.bleu_every == 0
                    )
                    try:
                        row = validate(average=options.average, bleu=bleu)
                    except Stopped:
                        at.broken_off = True
                        save(at, model, rule, folder, world)
                        return _unfinished(at, interrupts)
                    row["kind"] = "epoch" if whole else "validation"
                    if stopper is not None and (whole or due):  # not by where a limit fell
                        stopper.update(row["valid_loss"])
                        over = at.over(limits)
                    tell(folder, world, progress, pace.report(at.share(limits), row))
                    pace.restart(at.share(limits))
                if over:
                    break
                if not agreed:
                    continue
                now = time.monotonic()
                if agreeing > 1 or now - shown >= SHOW_EVERY:
                    shown = now
                    at.loss = finite(at.mean_loss(world), at, rule, folder)
                    tell(folder, world, progress, pace.report(at.share(limits)))
                urge = world.largest(2.0 * interrupts.asked + (now - saved >= options.save_every))
                if urge > 0.0:
                    refuse_damaged(at, model, rule, folder)
                    at.tick_training()
                    save(at, model, rule, folder, world)
                    saved = time.monotonic()
                if urge >= 2.0:
                    return _unfinished(at, interrupts)
            if at.batch == len(batches):
                at.next_epoch()
                pace.restart(at.share(limits))

        save(at, model, rule, folder, world)
        captured = None  # its graphs keep all the memory of training, which the search can use
        if device.type == "cuda":
            torch.cuda.empty_cache()
        fit, test = None, None
        if world.first:
            with suppress(Stopped):  # all is saved: the same command tests again
                fit, test = tested(at, model, data, folder, search, options.max_tokens, watch)
        fit, test = world.from_first((fit, test))
        return TranslationOutcome(
            finished=test is not None,
            epoch=at.last_epoch(),
            best_epoch=at.best_epoch,
            valid=fit or at.best,
            test=test,
            elapsed=at.elapsed,
            interrupted=world.largest(interrupts.asked) > 0.0,
            out_of_time=not at.complete(limits),
            stopped=at.stopped(),
            signal=interrupts.number,
        )


def _unfinished(at: TranslationPosition, interrupts: Interrupts) -> TranslationOutcome:
    return TranslationOutcome(
        finished=False,
        epoch=at.epoch,
        best_epoch=at.best_epoch,
        valid=at.best,
        test=None,
        elapsed=at.elapsed,
        interrupted=True,
        signal=interrupts.number,
    )


def _refuse_to_train_nothing(at: TranslationPosition, limits: Limits, folder: RunFolder) -> None:
    if at.best is not None or at.broken_off or not at.over(limits):
        return
    limit = "max_minutes" if at.clock >= 1.0 else "updates"
    raise NothingTrained(
        f"{folder.path}: training.{limit} ends it before its first "
        f"{'validation' if at.step else 'update'}, so there are no weights to test; set a larger "
        "one, or none"
    )


def _kept(
    at: TranslationPosition, row: dict[str, Any], data: TranslationData, limits: Limits
) -> TranslationOutcome:
    """What a run has come to that was tested before, by its line of metrics."""
    fit, test = tested_before(row, data)
    return TranslationOutcome(
        finished=True,
        epoch=at.last_epoch(),
        best_epoch=at.best_epoch,
        valid=fit,
        test=test,
        elapsed=row["elapsed"],
        out_of_time=not at.complete(limits),
        stopped=at.stopped(),
    )
