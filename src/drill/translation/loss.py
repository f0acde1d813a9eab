"""What reference translations cost a translator.

loss = 1/M sum_t -log p(y_t | y_<t, x)        perplexity = exp(loss)

M counts every target token and one ``<end>`` a sentence. No label smoothing: it is for training.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from drill.data import IGNORE, PairBatches, Pairs
from drill.models.translator import Translator
from drill.training.precision import evaluating, lower_precision

logger = logging.getLogger("drill")


@dataclass(frozen=True)
class TranslationLoss:
    """nll is the sum of -log p over ``tokens`` target tokens, ``<end>`` counted."""

    nll: float
    tokens: int

    @property
    def loss(self) -> float:
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700.0 else math.inf


def translation_loss(
    model: Translator,
    pairs: Pairs,
    *,
    max_tokens: int = 8192,
    autocast: torch.dtype | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TranslationLoss:
    """The loss of all ``pairs``, nothing dropped; the model comes back in the mode it was in.

    ``max_tokens`` bounds a batch, which changes the time and not the result; a longer pair has a
    batch of its own. Where a GPU's memory does not do, it is halved, and the log ``drill`` says so.
    ``progress`` is called with the pairs that are read and with all there are. NaN raises
    FloatingPointError.
    """
    longest = max(int(side.max(initial=0)) + 1 for side in pairs.lengths)
    while True:
        try:
            return _loss(model, pairs, max_tokens, autocast, progress)
        except torch.OutOfMemoryError:
            if max_tokens <= longest:  # that pair is a batch whatever the limit
                raise
        # Behind the handler: inside, the error would keep all tensors of the batch.
        fewer = max_tokens // 2
        logger.warning(
            "the GPU's memory is too small for the loss of %d tokens at a time, so it is taken of "
            "%d",
            max_tokens,
            fewer,
        )
        max_tokens = fewer


@torch.no_grad()
def _loss(
    model: Translator,
    pairs: Pairs,
    max_tokens: int,
    autocast: torch.dtype | None,
    progress: Callable[[int, int], None] | None,
) -> TranslationLoss:
    batches = PairBatches(pairs, max_tokens, long_alone=True)
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64)
    total, tokens, done = total.to(device), 0, 0
    with evaluating(model), lower_precision(device, autocast), model.layer.cached_labels():
        for batch in batches.epoch(0):
            if progress is not None:
                progress(done, len(pairs))
            done += len(batch.indices)
            total += model.loss(
                batch.source.to(device),
                batch.target_in.to(device),
                batch.target_out.to(device),
                label_smoothing=0.0,
                ignore_index=IGNORE,
                reduction="sum",
                check=False,
            )
            tokens += batch.target_tokens
    nll = total.item()
    if math.isnan(nll):
        raise FloatingPointError(
            "translation_loss: the loss is NaN; training has diverged, or the precision is too "
            "low: go back to an earlier checkpoint, or evaluate in float32"
        )
    return TranslationLoss(nll, tokens)
