"""Training of translators.

An update is the gradient of a few batches of pairs, divided by their target tokens.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from drill.data import PairBatch, PairBatches, Pairs, TranslationData
from drill.models.translator import Translator
from drill.training.cuda_graphs import CapturedGradients
from drill.training.distributed import World, data_parallel
from drill.training.loop import Outcome, Watch, fit
from drill.training.optim import NonMonotone, ScheduledOptimizer
from drill.training.options import TranslationOptions
from drill.training.precision import autocast_to, sum_dtype
from drill.training.progress import Progress
from drill.training.run.folder import RunFolder
from drill.training.state import Limits
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.evaluate import Translated
from drill.translation.loss import TranslationLoss
from drill.translation.state import TranslationState
from drill.translation.step import (
    backward,
    capturing,
    in_updates,
    own_batches,
    replayed,
    why_not_captured,
)
from drill.translation.translate import Search
from drill.translation.validate import tested, validated

logger = logging.getLogger("drill")


def train_translator(
    model: Translator,
    data: TranslationData,
    run: RunFolder,
    optimizer: ScheduledOptimizer,
    options: TranslationOptions,
    *,
    world: World = World(),  # noqa: B008 - it is frozen
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Train ``model`` in the folder ``run`` and test its best weights, see ``fit``.

    ``outcome.valid`` is the loss of the best single weights, of a finished run that of the weights
    it tests. A test of an earlier command has no hypotheses here: they are in the folder.

    Args:
        model: trained in place, on the device it is on.
        data: texts and ids of all splits.
        run: where checkpoints and metrics are; a run that has a checkpoint is resumed.
        optimizer: a fresh one; ``fit`` restores its state.
        world: this process among several.
        progress: called a few times a second, and after each validation.
    """
    task = TranslationTask(model, data, run, optimizer, options, world)
    return fit(task, run, optimizer, options, world=world, progress=progress)


class TranslationTask:
    """What ``fit`` asks of a translator."""

    def __init__(
        self,
        model: Translator,
        data: TranslationData,
        run: RunFolder,
        optimizer: ScheduledOptimizer,
        options: TranslationOptions,
        world: World,
    ) -> None:
        corpus_scores(["-"], ["-"])  # a missing package shows now, not at the end
        self.model, self.data, self.run, self.optimizer = model, data, run, optimizer
        self.options, self.world = options, world
        self.validate_every = options.validate_every
        self.device = next(model.parameters()).device
        self.pair_batches = PairBatches(
            data.train,
            options.max_tokens,
            options.seed,
            multiple=options.pad_to_multiple_of,
            rank=world.rank,
            size=world.size,
            subwords=data.subwords,
        )
        self.batches_per_update = own_batches(options.gradient_accumulation_steps, world)
        self.state = TranslationState(
            limits=Limits(options.epochs, options.max_steps, options.max_minutes),
            epoch_size=len(self.pair_batches),
            text=data.checksum,
            nll=torch.zeros((), dtype=sum_dtype(self.device), device=self.device),
            stopper=None if options.patience is None else NonMonotone(options.patience),
            average=options.average_checkpoints,
        )

    def prepare(self, autocast: torch.dtype | None) -> None:
        options = self.options
        self.autocast = autocast
        self.search = Search(
            beam=options.beam, length_penalty=options.length_penalty, autocast=autocast
        )
        if options.compile:
            self.model.transformer.compile(dynamic=True)  # sentences have all lengths
        self.trained = data_parallel(self.model, self.world)
        obstacle = why_not_captured(
            options.cuda_graphs, options.compile, self.device, self.world.size
        )
        self.captured: CapturedGradients | None = None
        if obstacle is None:
            self.captured = capturing(self.model, options.label_smoothing, autocast)
        elif self.device.type == "cuda" and self.world.first and options.cuda_graphs:
            logger.warning("batches are launched, not replayed as CUDA graphs: %s", obstacle)

    def batches(self) -> Iterator[list[PairBatch]]:
        if self.world.first:
            self.run.averaged.unlink(missing_ok=True)  # of a run that was to be shorter
        epoch = self.pair_batches.epoch(self.state.epoch, self.state.position)
        yield from in_updates(epoch, self.batches_per_update)

    def step(self, batch: list[PairBatch]) -> None:
        tokens = int(self.world.sum(sum(each.target_tokens for each in batch)))
        if self.captured is not None:
            nll = replayed(self.captured, batch, tokens, self.device)
        else:
            smoothing = self.options.label_smoothing
            with autocast_to(self.device, self.autocast):
                nll = backward(self.trained, self.model, batch, tokens, smoothing, self.device)
        self.state.nll += nll
        self.optimizer.step(1, 1, self.state.progress())
        self.state.position += len(batch)
        self.state.tokens += tokens

    def validate(self, watch: Watch) -> tuple[TranslationLoss, dict[str, Any]]:
        state, every = self.state, self.options.bleu_every
        bleu = every is not None and (state.step == 0 or (state.validations + 1) % every == 0)
        max_tokens = self.options.max_tokens
        return validated(
            state, self.model, self.data, self.search, max_tokens, watch=watch, bleu=bleu
        )

    def test(self, watch: Watch) -> tuple[TranslationLoss, Translated]:
        self.captured = None  # its graphs hold all the memory of training, which search can use
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        max_tokens = self.options.max_tokens
        return tested(self.state, self.model, self.data, self.run, self.search, max_tokens, watch)

    def read_test(self, row: dict[str, Any]) -> tuple[TranslationLoss, Translated]:
        """Without the translations: those in the folder may be newer."""
        data = self.data

        def loss(name: str, pairs: Pairs) -> TranslationLoss:
            tokens = int(pairs.lengths[1].sum()) + len(pairs)
            return TranslationLoss(float(row[f"{name}_loss"]) * tokens, tokens)

        scores = Scores(
            len(data.text.test),
            row["test_bleu"],
            row["bleu_signature"],
            row["test_chrf"],
            row["chrf_signature"],
            row["test_tokenised_bleu"],
            row["tokenised_signature"],
        )
        test = Translated(loss("test", data.test), scores, row["test_exact"], ())
        return loss("valid", data.valid), test
