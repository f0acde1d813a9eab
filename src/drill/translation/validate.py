"""Validations of a translator, and the test at the end of a run."""

import logging
from collections.abc import Callable
from dataclasses import asdict

from drill.data import TranslationData
from drill.models.translator import Translator
from drill.training.device import out_of_memory_hint
from drill.training.loop import TRAINING_LOG, Watch, diverged_if_nan
from drill.training.run.checkpoint import copy_into, load_into
from drill.training.run.folder import RunFolder
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import Translated, best_translations, translated
from drill.translation.hypotheses import DecodingInfo, keep_hypotheses
from drill.translation.loss import TranslationLoss, translation_loss
from drill.translation.state import TranslationState
from drill.translation.translate import Search

training_log = logging.getLogger(TRAINING_LOG)


def validated(
    state: TranslationState,
    model: Translator,
    data: TranslationData,
    search: Search,
    max_tokens: int,
    *,
    watch: Watch,
    bleu: bool,
) -> tuple[TranslationLoss, dict[str, float]]:
    """The loss of the validation text, and its BLEU if asked for."""
    again = "the same command goes on from its last checkpoint"
    what = f"the validation after step {state.step}"
    with out_of_memory_hint(what, f"make room on the GPU; {again}"):
        fit = _fit(state, model, data, search, max_tokens, watch("validation"))
        if not bleu:
            return fit, {}
        text = data.text.valid
        with diverged_if_nan(f"the translations after step {state.step}"):
            found = best_translations(
                model, data.subwords, text.source, search, watch("validation, BLEU")
            )
        scores = corpus_scores(found, text.target, language=data.language)
        return fit, {"valid_bleu": scores.bleu}


def tested(
    state: TranslationState,
    model: Translator,
    data: TranslationData,
    run: RunFolder,
    search: Search,
    max_tokens: int,
    watch: Watch,
) -> tuple[TranslationLoss, Translated]:
    """Test what is best, and write the translations and the line of metrics."""
    again = "the same command tests them again"
    with out_of_memory_hint(f"the test of {run.path}", f"make room on the GPU; {again}"):
        chosen, fit = _best_weights(state, model, data, run, search, max_tokens, watch)
        with diverged_if_nan(f"the test of the {chosen} weights in {run.path}", f"; {again}"):
            test = translated(
                model,
                data.subwords,
                data.text.test,
                data.test,
                search,
                language=data.language,
                progress=watch("test"),
            )
    made = DecodingInfo(search.beam, search.length_penalty, chosen)
    keep_hypotheses(run, "test", data.language, test.hypotheses, made)
    state.tick()
    run.append_test(
        {
            "kind": "test",
            "epoch": state.best_epoch,  # of the best single weights
            "weights": chosen,
            **({"averaged_steps": sorted(state.recent)} if chosen == "averaged" else {}),
            "valid_loss": fit.loss,
            "valid_perplexity": fit.perplexity,
            "test_loss": test.fit.loss,
            "test_perplexity": test.fit.perplexity,
            "test_bleu": test.scores.bleu,
            "test_tokenised_bleu": test.scores.tokenised_bleu,
            "test_chrf": test.scores.chrf,
            "test_exact": test.exact,
            "bleu_signature": test.scores.signature,
            "tokenised_signature": test.scores.tokenised_signature,
            "chrf_signature": test.scores.chrf_signature,
            "beam": search.beam,
            "length_penalty": search.length_penalty,
            "elapsed": state.elapsed,
        }
    )
    return fit, test


def _fit(
    state: TranslationState,
    model: Translator,
    data: TranslationData,
    search: Search,
    max_tokens: int,
    count: Callable[[int, int], None],
) -> TranslationLoss:
    """In batches that are no larger than those trained on, which have left room for themselves."""
    with diverged_if_nan(f"the validation after step {state.step}"):
        return translation_loss(
            model, data.valid, max_tokens=max_tokens, autocast=search.autocast, progress=count
        )


def _best_weights(
    state: TranslationState,
    model: Translator,
    data: TranslationData,
    run: RunFolder,
    search: Search,
    max_tokens: int,
    watch: Watch,
) -> tuple[str, TranslationLoss]:
    """Load what is to be tested: the best weights, or the mean of the last if that is better."""
    assert state.best is not None
    if len(state.recent) > 1:
        mean = state.average_recent(run)
        copy_into(dict(model.named_parameters()), mean, str(run.last.parent))
        fit = _fit(state, model, data, search, max_tokens, watch("validation of the mean"))
        better = fit.loss < state.best.loss
        state.tick()
        run.append(
            {
                "kind": "average",
                "epoch": state.last_epoch(),
                "steps": sorted(state.recent),
                "valid_loss": fit.loss,
                "valid_perplexity": fit.perplexity,
                "best": better,
                "elapsed": state.elapsed,
            }
        )
        training_log.info(
            "mean of the last %d: valid %.2f, %s",
            len(state.recent),
            fit.perplexity,
            f"better than {state.best.perplexity:.2f}, and kept"
            if better
            else f"not better than {state.best.perplexity:.2f}, which is kept",
        )
        if better:
            run.save_averaged(mean, {"steps": sorted(state.recent), "valid": asdict(fit)})
            return "averaged", fit
    load_into(model, run.best)
    return "best", state.best
