"""What is measured of a translator in training: validations, and the test at the end of a run."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from drill.data import TranslationData
from drill.models.translator import Translator
from drill.training.device import told_of_memory
from drill.training.distributed import World
from drill.training.divergence import diverged_if_nan
from drill.training.loop import SHOW_EVERY, TRAINING_LOG
from drill.training.optim import Rule
from drill.training.progress import Pace, Progress
from drill.training.run.checkpoint import copy_into, load_into
from drill.training.run.folder import RunFolder
from drill.training.signals import Interrupts
from drill.training.state import Limits
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import Translated, best_translations, translated
from drill.translation.hypotheses import Made, keep_hypotheses
from drill.translation.loss import TranslationLoss, translation_loss
from drill.translation.state import TranslationPosition, averaged, test_row
from drill.translation.translate import Search

training_log = logging.getLogger(TRAINING_LOG)

Watch = Callable[[str], Callable[[int, int], None]]
"""The name of some work -> what is called with how much of it is done, and with all there is."""


class Stopped(Exception):
    """Somebody has asked for an end; what was being measured is lost, and nothing else."""


def watching(
    pace: Pace, progress: Callable[[Progress], None] | None, interrupts: Interrupts | None = None
) -> Watch:
    """Shows work a few times a second, and ends it with Stopped where ``interrupts`` are given."""

    def watch(work: str) -> Callable[[int, int], None]:
        shown = time.monotonic()

        def count(done: int, total: int) -> None:
            nonlocal shown
            if interrupts is not None and interrupts.asked:
                raise Stopped
            if progress is None or time.monotonic() - shown < SHOW_EVERY:
                return
            shown = time.monotonic()
            progress(replace(pace.report(1.0), work=work, share=done / total))

        return count

    return watch


def validated(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    rule: Rule,
    limits: Limits,
    world: World,
    *,
    average: int,
    search: Search,
    max_tokens: int,
    bleu: bool,
    watch: Watch,
) -> dict[str, Any]:
    """Keep the weights if they are the best so far; gives the line of metrics.

    Where ``watch`` ends it, all processes raise Stopped and ``at`` is as it was.
    """
    fit: TranslationLoss | None = None
    more: dict[str, float] = {}
    if world.first:
        with suppress(Stopped):  # the others, which wait for the result, have to hear of it
            fit, more = _measured(at, model, data, search, max_tokens, bleu, watch)
    fit = world.from_first(fit)
    if fit is None:
        raise Stopped
    better = at.offer(fit, model, average)
    at.tick()
    return at.row(fit, lr=rule.rate(at.share(limits)), best=better) | more


def _measured(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    search: Search,
    max_tokens: int,
    bleu: bool,
    watch: Watch,
) -> tuple[TranslationLoss, dict[str, float]]:
    """The loss of the validation text, and its BLEU where that is asked for."""
    again = "the same command goes on from its last checkpoint"
    with told_of_memory(f"the validation after step {at.step}", f"make room on the GPU; {again}"):
        fit = _fit(at, model, data, search, max_tokens, watch("validation"))
        if not bleu:
            return fit, {}
        text = data.text.valid
        with diverged_if_nan(f"the translations after step {at.step}"):
            found = best_translations(
                model, data.subwords, text.source, search, watch("validation, BLEU")
            )
        scores = corpus_scores(found, text.target, language=data.language)
        return fit, {"valid_bleu": scores.bleu}


def tested(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    folder: RunFolder,
    search: Search,
    max_tokens: int,
    watch: Watch,
) -> tuple[TranslationLoss, Translated]:
    """Test what is best, on the validation text and on the test text; the folder keeps both."""
    again = "the same command tests them again"
    with told_of_memory(f"the test of {folder.path}", f"make room on the GPU; {again}"):
        chosen, fit = _best_weights(at, model, data, folder, search, max_tokens, watch)
        with diverged_if_nan(f"the test of the {chosen} weights in {folder.path}", f"; {again}"):
            test = translated(
                model,
                data.subwords,
                data.text.test,
                data.test,
                search,
                language=data.language,
                progress=watch("test"),
            )
    made = Made(search.beam, search.length_penalty, chosen)
    keep_hypotheses(folder, "test", data.language, test.hypotheses, made)
    at.tick()
    folder.append_test(test_row(at, chosen, fit, test, search))  # the run has ended
    return fit, test


def _fit(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    search: Search,
    max_tokens: int,
    count: Callable[[int, int], None],
) -> TranslationLoss:
    """In batches that are no larger than those trained on, which have left room for themselves."""
    with diverged_if_nan(f"the validation after step {at.step}"):
        return translation_loss(
            model, data.valid, max_tokens=max_tokens, autocast=search.autocast, progress=count
        )


def _best_weights(
    at: TranslationPosition,
    model: Translator,
    data: TranslationData,
    folder: RunFolder,
    search: Search,
    max_tokens: int,
    watch: Watch,
) -> tuple[str, TranslationLoss]:
    """Load what is to be tested: the best weights, or the mean of the last if that is better."""
    assert at.best is not None
    if len(at.recent) > 1:
        mean = averaged(at, folder)
        copy_into(dict(model.named_parameters()), mean, str(folder.last.parent))
        fit = _fit(at, model, data, search, max_tokens, watch("validation of the mean"))
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
        training_log.info(
            "mean of the last %d: valid %.2f, %s",
            len(at.recent),
            fit.perplexity,
            f"better than {at.best.perplexity:.2f}, and kept"
            if better
            else f"not better than {at.best.perplexity:.2f}, which is kept",
        )
        if better:
            folder.save_averaged(mean, {"steps": sorted(at.recent), "valid": asdict(fit)})
            return "averaged", fit
    load_into(model, folder.best)
    return "best", at.best
