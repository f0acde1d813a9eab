"""The training loop of translators, read top to bottom.

An update is the gradient of a few batches of pairs, divided by their target tokens. Every epoch,
and every so many updates, the loop validates and keeps the best weights. Every so often all of it
is saved, so that a run which was killed goes on as if nothing had happened.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from drill.checkpoint import copy_into, load_into
from drill.data import PairBatches, TranslationData
from drill.evaluation.bleu import corpus_scores
from drill.evaluation.translated import Translated, best_translations, translated
from drill.evaluation.translation_loss import TranslationLoss, translation_loss
from drill.interrupts import Interrupts
from drill.optim import Rule
from drill.parallel import World
from drill.precision import Precision, autocast_to, products
from drill.progress import Pace, Progress
from drill.run_folder import RunFolder
from drill.standing import Limits, cut_metrics
from drill.steps import TRAINING_LOG
from drill.training import (
    AGREE_EVERY,
    SHOW_EVERY,
    Diverged,
    best_kept,
    finite,
    refuse_damaged,
    tell,
    widest,
    wrapped,
)
from drill.translation import Search
from drill.translation_position import (
    TranslationPosition,
    averaged,
    restore,
    save,
    test_row,
    tested_before,
)
from drill.translation_steps import (
    backward,
    capturing,
    in_updates,
    own_batches,
    replayed,
    translation_ways,
    why_not_captured,
)
from drill.translator import Translator

logger = logging.getLogger("drill")
training_log = logging.getLogger(TRAINING_LOG)


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
    elapsed: float  # seconds, over all lives of the run


def train_translator(
    model: Translator,
    data: TranslationData,
    folder: RunFolder,
    rule: Rule,
    *,
    epochs: int = 30,
    updates: int | None = None,
    max_minutes: float | None = None,
    max_tokens: int = 4096,
    accumulate: int = 1,
    label_smoothing: float = 0.1,
    seed: int = 1,
    precision: Precision = "tf32",
    pad_to: int = 1,
    capture: bool = True,
    compile: bool = False,
    validate_every: int | None = None,
    bleu_every: int | None = None,
    average: int = 1,
    beam: int = 4,
    length_penalty: float = 0.6,
    save_every: float = 120.0,
    world: World = World(),  # noqa: B008 - it is frozen
    progress: Callable[[Progress], None] | None = None,
) -> TranslationOutcome:
    """Train ``model`` until the first limit, then test its best weights: loss and BLEU.

    Goes on from the last checkpoint of ``folder`` where there is one; of a run that was tested and
    is at a limit it gives what was found then. Ctrl-C and SIGTERM end the step, save and give an
    unfinished outcome.

    epochs, updates,  limits: whichever is reached first ends the run. Schedules that run over the
    max_minutes       whole run follow that one, so max_minutes gives each layer the same time
    max_tokens        of a batch, on either side, padding counted
    accumulate        batches an update, over all processes
    label_smoothing   of the training loss; what is validated and tested has none
    precision         float32, tf32 (float32 stored, products on tf32 units), bfloat16 (autocast) or
                      auto
    pad_to            lengths of a batch are multiples of it: more padding and fewer shapes
    capture           on a GPU, replay batches of a shape seen before as CUDA graphs
    compile           the Transformer by torch.compile
    validate_every    updates; the end of an epoch is always validated
    bleu_every        validations; BLEU of the validation text goes into their lines
    average           the mean of the weights of so many last validations is tried at the end: where
                      it is better than the best ones, it is kept and tested; 1 tries nothing
    beam,             of all translations that are scored
    length_penalty
    save_every        seconds between checkpoints
    """
    check_translation_options(
        epochs=epochs,
        updates=updates,
        max_minutes=max_minutes,
        max_tokens=max_tokens,
        accumulate=accumulate,
        pad_to=pad_to,
        label_smoothing=label_smoothing,
        seed=seed,
        validate_every=validate_every,
        bleu_every=bleu_every,
        average=average,
        beam=beam,
        length_penalty=length_penalty,
        save_every=save_every,
    )
    corpus_scores(["-"], ["-"])  # a missing package shows now, not at the end
    device = next(model.parameters()).device
    batches = PairBatches(
        data.train,
        max_tokens,
        seed,
        multiple=pad_to,
        rank=world.rank,
        size=world.size,
        subwords=data.subwords,
    )
    own = own_batches(accumulate, world)
    limits = Limits(epochs, updates, max_minutes)
    search = Search(beam=beam, length_penalty=length_penalty)
    rule.begin(model.named_parameters())
    no_loss = torch.zeros((), dtype=widest(device), device=device)
    at = TranslationPosition(len(batches), nll=no_loss, text=data.checksum)
    resumed = restore(at, model, rule, folder, world)
    at.clock = world.largest(limits.clock(at))
    tested = folder.test_row() if resumed and at.share(limits) >= 1.0 else None
    if tested is not None:  # the run has ended: nothing is measured again, and nothing written
        return _kept(at, tested, data)
    cut_metrics(at, folder, world)
    if not resumed and world.rank > 0:
        torch.manual_seed(seed + world.rank)  # every process drops other things
    if compile:
        model.transformer.compile(dynamic=True)  # sentences have all lengths
    trained = wrapped(model, world)
    pace = Pace(at, epochs)
    pace.restart(at.share(limits))
    agreeing = 1 if world.size == 1 else AGREE_EVERY
    saved = shown = time.monotonic()

    with (
        products(precision, device) as autocast,
        Interrupts() as interrupts,
        best_kept(at, folder, world),
    ):
        search = replace(search, autocast=autocast)
        obstacle = why_not_captured(capture, compile, device, world.size)
        captured = None if obstacle is not None else capturing(model, label_smoothing, autocast)
        if device.type == "cuda" and world.first:
            found = translation_ways(model, obstacle, max_tokens, autocast, compile)
            training_log.info("training on %s: %s", device, "; ".join(found))
            if capture and obstacle is not None:
                logger.warning("batches are launched, not replayed as CUDA graphs: %s", obstacle)
        if at.share(limits) < 1.0 and world.first:
            folder.averaged.unlink(missing_ok=True)  # of a run that was to be shorter
        while at.share(limits) < 1.0:
            model.train()
            for update in in_updates(batches.epoch(at.epoch, at.batch), own):
                tokens = int(world.sum(sum(batch.target_tokens for batch in update)))
                if captured is not None:
                    at.nll += replayed(captured, update, tokens, device)
                else:
                    with autocast_to(device, autocast):
                        at.nll += backward(trained, model, update, tokens, label_smoothing, device)
                rule.step(1, 1, at.share(limits))
                at.batch += len(update)
                at.step += 1
                at.tokens += tokens

                agreed = at.step % agreeing == 0
                if agreed:
                    at.clock = world.largest(limits.clock(at))
                ended, over = at.batch == len(batches), at.share(limits) >= 1.0
                due = validate_every is not None and at.step % validate_every == 0
                if ended or over or due:
                    at.loss = finite(at.mean_loss(world), at, rule, folder)
                    refuse_damaged(at, model, rule, folder)
                    at.tick_training()
                    bleu = bleu_every is not None and (at.validations + 1) % bleu_every == 0
                    row = _validate(at, model, data, rule, limits, world, average, search, bleu)
                    row["kind"] = "epoch" if ended else "validation"
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
                urge = world.largest(2.0 * interrupts.asked + (now - saved >= save_every))
                if urge > 0.0:
                    refuse_damaged(at, model, rule, folder)
                    at.tick_training()
                    save(at, model, rule, folder, world)
                    saved = time.monotonic()
                if urge >= 2.0:
                    return TranslationOutcome(
                        False, at.epoch, at.best_epoch, at.best, None, at.elapsed
                    )
            if at.batch == len(batches):
                at.next_epoch()
                pace.restart(at.share(limits))

        save(at, model, rule, folder, world)
        captured = None  # its graphs keep all the memory of training, which the search can use
        if device.type == "cuda":
            torch.cuda.empty_cache()
        test, fit = None, at.best
        if world.first and at.best is not None:
            chosen, fit = _best_weights(at, model, data, folder, search)
            test = translated(
                model, data.subwords, data.text.test, data.test, search, language=data.language
            )
            folder.write_lines(folder.hypotheses("test", data.language), test.hypotheses)
            at.tick()
            folder.append(test_row(at, chosen, fit, test, search))  # the run has ended
        epoch, test, fit = at.last_epoch(), world.from_first(test), world.from_first(fit)
        return TranslationOutcome(True, epoch, at.best_epoch, fit, test, at.elapsed)


def _kept(
    at: TranslationPosition, row: dict[str, Any], data: TranslationData
) -> TranslationOutcome:
    """What a run has come to that was tested before, by its line of metrics."""
    fit, test = tested_before(row, data)
    return TranslationOutcome(True, at.last_epoch(), at.best_epoch, fit, test, row["elapsed"])


def _validate(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    rule: Rule,
    limits: Limits,
    world: World,
    average: int,
    search: Search,
    bleu: bool,
) -> dict[str, Any]:
    """Keep the weights if they are the best so far; gives the line of metrics."""
    fit, more = None, {}
    if world.first:
        fit = _fit(at, model, data, search)
        if bleu:
            text = data.text.valid
            found = best_translations(model, data.subwords, text.source, search)
            more = {"valid_bleu": corpus_scores(found, text.target).bleu}
    fit = world.from_first(fit)
    better = at.offer(fit, model, average)
    at.tick()
    return at.row(fit, lr=rule.rate(at.share(limits)), best=better) | more


def _fit(
    at: TranslationPosition, model: Translator, data: TranslationData, search: Search
) -> TranslationLoss:
    try:
        return translation_loss(model, data.valid, autocast=search.autocast)
    except FloatingPointError as error:  # of finite parameters: those were looked at before
        raise Diverged(f"the validation after step {at.step}: {error}") from None


def _best_weights(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    folder: RunFolder,
    search: Search,
) -> tuple[str, TranslationLoss]:
    """Load what is to be tested: the best weights, or the mean of the last if that is better."""
    assert at.best is not None
    if len(at.recent) > 1:
        mean = averaged(at, folder)
        copy_into(dict(model.named_parameters()), mean, str(folder.last.parent))
        fit = _fit(at, model, data, search)
        better = fit.loss < at.best.loss
        at.tick()
        folder.append(
            {
                "kind": "average",
                "epoch": at.last_epoch(),
                "steps": sorted(at.recent),
                "valid_loss": fit.loss,
                "valid_perplexity": fit.perplexity,
                "best": better,
                "elapsed": at.elapsed,
            }
        )
        if better:
            folder.save_averaged(mean, {"steps": sorted(at.recent), "valid": asdict(fit)})
            return "averaged", fit
    load_into(model, folder.best)
    return "best", at.best


def check_translation_options(
    *,
    epochs: int,
    updates: int | None,
    max_minutes: float | None,
    max_tokens: int,
    accumulate: int,
    pad_to: int,
    label_smoothing: float,
    seed: int,
    validate_every: int | None,
    bleu_every: int | None,
    average: int,
    beam: int,
    length_penalty: float,
    save_every: float,
    **_: object,
) -> None:
    """Refuse what ``train_translator`` could not use; it says so before anything is read."""
    counted = {
        "epochs": epochs,
        "updates": updates,
        "max_tokens": max_tokens,
        "accumulate": accumulate,
        "pad_to": pad_to,
        "validate_every": validate_every,
        "bleu_every": bleu_every,
        "average": average,
        "beam": beam,
    }
    for name, count in counted.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} is at least 1, not {count}")
    if max_minutes is not None and not max_minutes > 0.0:
        raise ValueError(f"max_minutes is a positive number, not {max_minutes}")
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty is a finite number, not {length_penalty}")
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing lies in [0, 1), not {label_smoothing}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed lies in 0 to 2**32 - 1, not {seed}")
    if not save_every >= 0.0:
        raise ValueError(f"save_every is at least 0 seconds, not {save_every}")
