"""The training loop of language models, read top to bottom.

Every epoch walks down the columns of the training text in segments of random length, carrying the
hidden state; then it validates and keeps the best weights. Every so often all of it is saved, so
that a run which was killed goes on as if nothing had happened.
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drill.data import Ids, columns, rotated, rotations, sequence_lengths, training_segments
from drill.language_modeling.build import check_adversarial
from drill.language_modeling.perplexity import Perplexity, perplexity
from drill.language_modeling.state import Position, restore, save
from drill.language_modeling.step import steps
from drill.models.language_model import LanguageModel
from drill.training.distributed import World
from drill.training.divergence import best_kept, diverged_if_nan, finite, refuse_damaged
from drill.training.loop import AGREE_EVERY, SHOW_EVERY, Glance, Outcome, tell, widest, wrapped
from drill.training.optim import NonMonotone, Rule
from drill.training.options import LanguageModelOptions
from drill.training.precision import products
from drill.training.progress import Progress, Speed
from drill.training.run.checkpoint import load_into
from drill.training.run.folder import RunFolder
from drill.training.signals import Interrupts
from drill.training.state import Limits, cut_metrics

READ_AT_ONCE = 512  # rows of a text that a GPU evaluates; the result does not depend on it


def train(
    model: LanguageModel,
    ids: Ids,
    folder: RunFolder,
    rule: Rule,
    options: LanguageModelOptions,
    *,
    world: World = World(),  # noqa: B008 - it is frozen
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Train ``model`` until the first limit, then test its best weights.

    Goes on from the last checkpoint of ``folder`` where there is one; of a run that was tested and
    has no epoch left it gives what was found then. Ctrl-C and SIGTERM end the step, save and give
    an unfinished outcome.
    """
    check_adversarial(options.adversarial, model.layer)
    bptt, batch_size = options.bptt, options.batch_size
    device = next(model.parameters()).device
    whole = columns(ids.train, batch_size, "training.batch_size")
    data = world.columns(whole).to(device)  # (rows, B)
    in_order = data.clone() if options.partial_shuffle else data
    rows = data.shape[0]
    read_at_once = max(bptt, READ_AT_ONCE) if device.type == "cuda" else bptt
    valid = columns(ids.valid, options.valid_batch_size, "training.valid_batch_size").to(device)
    # Too short a text shows now, not at the end.
    test_columns = columns(ids.test, options.test_batch_size, "training.test_batch_size")
    length_seed = options.seed if options.length_seed is None else options.length_seed
    lengths = sequence_lengths(length_seed, bptt, options.length_cap)
    stopper = None if options.patience is None else NonMonotone(options.patience)
    regularizers = ("activation", "slowness", "adversarial", "state_reset")
    loss_options = {name: getattr(options, name) for name in regularizers}
    rule.begin(model.named_parameters())
    no_loss = torch.zeros((), dtype=widest(device), device=device)
    at = Position(lengths, stopper, nll=no_loss, text=_checksum(ids))
    resumed = restore(at, model, rule, folder, world)
    limits = Limits(options.epochs, None, options.max_minutes)
    at.clock = world.largest(limits.clock(at))
    tested = folder.test_row() if resumed and at.over(limits) else None
    if tested is not None:  # the run has ended: nothing is measured again, and nothing written
        return _kept(at, tested, test_columns, limits)
    if cut_metrics(at, folder, world):
        save(at, model, rule, folder, world)
    if not resumed and world.rank > 0:
        torch.manual_seed(options.seed + world.rank)  # every process drops other things
    trained = wrapped(model, world)
    speed = Speed(at, rows, batch_size, limits)
    agreeing = 1 if world.size == 1 else AGREE_EVERY
    saved = shown = time.monotonic()

    with (
        products(options.precision, device) as autocast,
        Interrupts() as interrupts,
        best_kept(at, folder, world),
    ):
        step = steps(
            model,
            trained,
            data,
            rule,
            capture=options.capture,
            world_size=world.size,
            bptt=bptt,
            autocast=autocast,
            micro_batch=options.micro_batch,
            options=loss_options | {"check": False},
        )
        if options.baseline and not resumed:
            at.epoch = 0
            row = _validate(at, model, valid, rule, world, read_at_once, autocast, rule.rate(0.0))
            tell(folder, world, progress, speed.report(row))
            at.next_epoch()

        while not at.over(limits):
            model.train()
            glance = Glance(device)
            if options.partial_shuffle:  # in place: steps read the text where it is
                offsets = world.columns(rotations(options.seed, at.epoch, rows, batch_size))
                data.copy_(rotated(in_order, offsets))
            for segment in training_segments(rows, at.lengths, at.row):
                step(at, segment, at.share(limits, rows))
                at.row += segment.length
                at.step += 1

                if at.step % agreeing != 0:
                    continue
                at.clock = world.largest(limits.clock(at))
                if at.clock >= 1.0:
                    break
                now = time.monotonic()
                if agreeing > 1 or now - shown >= SHOW_EVERY:
                    shown = now
                    seen = glance(at, world)
                    if seen is not None:
                        at.loss = finite(seen, at, rule, folder)
                    tell(folder, world, progress, speed.report())
                urge = world.largest(2.0 * interrupts.asked + (now - saved >= options.save_every))
                if urge > 0.0:
                    refuse_damaged(at, model, rule, folder)
                    save(at, model, rule, folder, world)
                    saved = time.monotonic()
                if urge >= 2.0:
                    return Outcome(
                        finished=False,
                        epoch=at.epoch,
                        best_epoch=at.best_epoch,
                        valid=at.best,
                        test=None,
                        elapsed=at.elapsed,
                        interrupted=True,
                        signal=interrupts.number,
                    )

            at.loss = finite(at.mean_loss(world), at, rule, folder)
            refuse_damaged(at, model, rule, folder)
            lr = rule.rate(at.share(limits, rows))
            row = _validate(at, model, valid, rule, world, read_at_once, autocast, lr)
            if at.clock >= 1.0:  # inside an epoch, which a larger limit goes on with
                tell(folder, world, progress, speed.report(row | {"kind": "validation"}))
                break
            rule.epoch_ended(row["valid_loss"])
            if stopper is not None:
                stopper.update(row["valid_loss"])
            tell(folder, world, progress, speed.report(row))
            at.next_epoch()
            speed.restart()
            at.clock = world.largest(limits.clock(at))

        save(at, model, rule, folder, world)
        test: Perplexity | None = None
        if at.best is not None and world.first:
            load_into(model, folder.best)
            again = "; the same command tests them again"
            with diverged_if_nan(f"the test of the best weights, {folder.best}", again):
                test = perplexity(model, test_columns, bptt=read_at_once, autocast=autocast)
            at.tick()
            folder.append_test(at.test_row(test))
        test = world.from_first(test)
        late = world.largest(interrupts.asked) > 0.0
        ended = _ended(at, limits, test, at.elapsed)
        return replace(ended, interrupted=late, signal=interrupts.number)


def _kept(at: Position, row: dict[str, Any], test: Tensor, limits: Limits) -> Outcome:
    """What a run has come to that was tested before, by its line of metrics."""
    rows, columns = test.shape
    tokens = (rows - 1) * columns
    scores = Perplexity(float(row["test_loss"]) * tokens, tokens, columns)
    return _ended(at, limits, scores, row["elapsed"])


def _ended(at: Position, limits: Limits, test: Perplexity | None, elapsed: float) -> Outcome:
    return Outcome(
        finished=True,
        epoch=at.epochs(),
        best_epoch=at.best_epoch,
        valid=at.best,
        test=test,
        elapsed=elapsed,
        out_of_time=not at.complete(limits),
        stopped=at.stopped(),
    )


def _validate(
    at: Position,
    model: LanguageModel,
    valid: Tensor,
    rule: Rule,
    world: World,
    rows: int,
    autocast: torch.dtype | None,
    lr: float,
) -> dict[str, Any]:
    """Keep the weights if they are the best so far; gives the epoch's line of metrics."""
    averaged = rule.averaging
    scores: Perplexity | None = None
    with rule.evaluated():
        if world.first:
            with diverged_if_nan(f"the validation after epoch {at.epoch}"):
                scores = perplexity(model, valid, bptt=rows, autocast=autocast)
        scores = world.from_first(scores)
        better = at.offer(scores, model)
    at.tick()
    return at.epoch_row(scores, lr=lr, averaged=averaged, best=better)


def _checksum(ids: Ids) -> int:
    found = 0
    for split in ids:
        found = zlib.crc32(split.tobytes(), found)
    return found
