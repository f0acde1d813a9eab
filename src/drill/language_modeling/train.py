"""Training of language models: what a step, a validation and the test are.

An epoch reads the streams of the training text in segments of random length and carries the hidden
state from one to the next. An encoder without a state reads windows of ``bptt`` tokens
instead.
"""

import zlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import reduce
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from drill.data import Ids, Segment, SequenceLengths, Vocabulary, batchify, training_segments
from drill.data.text.batches import rotated, rotations
from drill.errors import DataError, check_value
from drill.language_modeling.evaluation.frequency_bands import vocabulary_bands
from drill.language_modeling.evaluation.perplexity import (
    Perplexity,
    evaluate_tokens,
    predicted_bytes,
)
from drill.language_modeling.step import CapturedSteps, LanguageModelState, Steps, capture_blocker
from drill.language_modeling.untie import untied
from drill.models.language_model import LanguageModel
from drill.training.distributed import World, data_parallel, shard, unsharded
from drill.training.loop import Task, Watch, diverged_if_nan
from drill.training.optim import ScheduledOptimizer
from drill.training.options import LanguageModelOptions
from drill.training.precision import autocast_to
from drill.training.run.checkpoint import load_into, strip_prefix
from drill.training.run.folder import RunFolder

REGULARISERS = (  # options of the loss
    *("ar_weight", "tar_weight", "adversarial", "state_reset"),
    *("augmented", "augmented_temperature", "norm_weight", "norm_target"),
)
READ_AT_ONCE = 512  # rows that a GPU evaluates at a time; the result does not depend on it


class LanguageModelTask(Task):
    """What ``fit`` asks of a language model.

    Args:
        ids: the encoded splits.
        vocabulary: with it the test has the loss by frequency and, of subwords, bits per byte.
        corpus: its name, by which words are excluded from the former.
    """

    model: LanguageModel
    options: LanguageModelOptions
    state: LanguageModelState

    def __init__(
        self,
        model: LanguageModel,
        ids: Ids,
        run: RunFolder,
        optimizer: ScheduledOptimizer,
        options: LanguageModelOptions,
        *,
        world: World = World(),  # noqa: B008 - it is frozen
        vocabulary: Vocabulary | None = None,
        corpus: str = "",
    ) -> None:
        super().__init__(model, run, optimizer, options, world)
        device = self.device
        self.sharded = options.fsdp and world.size > 1
        self.vocabulary, self.corpus = vocabulary, corpus
        self.token_bytes = None if vocabulary is None else vocabulary.token_bytes
        self.windows = not model.encoder.carries_state
        streams = batchify(ids.train, options.batch_size, "training.batch_size")
        bptt, most = options.bptt, f"at most the {len(ids.train):,} training tokens"
        check_value(bptt <= len(ids.train), "training.bptt", most, bptt, DataError)
        if self.windows and len(streams) > bptt:  # all of one length: the rest is left out
            streams = streams[: (len(streams) - 1) // bptt * bptt + 1]
        self.data = world.local_batch(streams).to(device)  # (rows, B)
        self.in_order = self.data.clone() if options.partial_shuffle else self.data
        valid = batchify(ids.valid, options.valid_batch_size, "training.valid_batch_size")
        self.valid = valid.to(device)
        # A text that is too short is an error now, not after training.
        self.test_text = batchify(ids.test, options.test_batch_size, "training.test_batch_size")
        large = device.type == "cuda" and not self.windows
        self.read_at_once = max(bptt, READ_AT_ONCE) if large else bptt
        length_seed = options.seed if options.length_seed is None else options.length_seed
        self.state = LanguageModelState(
            **self.initial_state(),
            epoch_size=self.data.shape[0],
            data_checksum=text_checksum(ids),
            lengths=SequenceLengths(length_seed, bptt, options.length_cap),
        )

    def setup(self) -> None:
        run = self.run
        if self.sharded:
            shard(self.model, self.world)
        switches = self.options.untie_at is not None
        if switches and run.last.exists() and run.last_numbers()["untied"]:
            self.model.layer = untied(self.model.layer)  # so that the checkpoint fits
        super().setup()

    def kernels(self, autocast: torch.dtype | None) -> list[str]:
        super().setup()  # what the optimizer can do depends on what it changes
        with autocast_to(self.device, autocast):
            kernels = self.model.kernel_summary(self.data.shape[1], self.options.bptt)
        blocker = self._capture_blocker()
        steps = "replayed as CUDA graphs" if blocker is None else f"launched one by one: {blocker}"
        return [*kernels, f"steps {steps}"]

    def _capture_blocker(self) -> str | None:
        graphs, micro_batch = self.options.cuda_graphs, self.options.micro_batch
        return capture_blocker(self.model, self.optimizer, graphs, self.world.size, micro_batch)

    def prepare(self, autocast: torch.dtype | None) -> None:
        self.autocast = autocast
        if self.options.compile:
            self.model.encoder.compile()
        self._prepare_steps()

    def _prepare_steps(self) -> None:
        options = self.options
        steps_class: type[Steps] = Steps if self._capture_blocker() else CapturedSteps
        self._step = steps_class(
            data_parallel(self.model, self.world),
            self.data,
            self.optimizer,
            bptt=options.bptt,
            autocast=self.autocast,
            micro_batch=options.micro_batch,
            options={name: getattr(options, name) for name in REGULARISERS} | {"check": False},
        )

    def batches(self) -> Iterator[Segment]:
        state, rows = self.state, self.data.shape[0]
        if self.options.partial_shuffle:  # in place: steps read the text where it is
            offsets = rotations(self.options.seed, state.epoch, rows, self.options.batch_size)
            self.data.copy_(rotated(self.in_order, self.world.local_batch(offsets)))
        fixed = self.windows or not self.options.random_lengths
        lengths = repeat(self.options.bptt) if fixed else state.lengths
        yield from training_segments(rows, lengths, state.position)

    def step(self, batch: Segment) -> None:
        switch = self.options.untie_at
        if switch is not None and not self.state.untied and self.state.progress() >= switch:
            self._untie()
        self._step(self.state, batch, self.state.progress())
        self.state.position += batch.length
        self.state.tokens += batch.length * self.options.batch_size

    def _untie(self) -> None:
        """Go on with a free matrix, which takes a copy of E's optimizer state; other parameters
        keep theirs, the best is forgotten."""
        shared, saved = self.model.layer.matrix.label_weight, self.optimizer.state_dict()
        names = [name for name, p in self.optimizer.parameters.items() if p is shared]
        self.model.layer = untied(self.model.layer)
        free = "layer.embedding.weight"
        fits = self.model.layer.label_weight.shape == shared.shape
        for name in names if fits else ():  # none if E is computed
            state = strip_prefix(f"{name}/", saved)
            saved |= {f"{free}/{key}": value.clone() for key, value in state.items()}
            saved["optimizer"][free] = saved["optimizer"][name]
        self.optimizer.setup(self.model.named_parameters())
        self.optimizer.load_state_dict(saved)
        self.state.untied, self.state.best, self.state.best_weights = True, None, None
        self._prepare_steps()

    def _evaluated(self, text: Tensor, **options: Any) -> tuple[Perplexity, Tensor, Tensor]:
        with unsharded(self.model):
            return evaluate_tokens(
                self.model,
                text,
                batch_size=text.shape[1],
                bptt=self.read_at_once,
                autocast=self.autocast,
                token_bytes=self.token_bytes,
                **options,
            )

    def validate(self, watch: Watch) -> tuple[Perplexity, dict[str, Any]]:
        with diverged_if_nan(f"the validation after step {self.state.step}"):
            score, *_ = self._evaluated(self.valid, progress=watch("validation"))
        return score, {"untied": True} if self.state.untied else {}

    def test(self, watch: Watch) -> tuple[Perplexity, Perplexity]:
        load_into(self.model, self.run.best)
        with diverged_if_nan(f"the test of the best weights, {self.run.best}"):
            test, *tokens = self._evaluated(self.test_text, progress=watch("test"))
        self.state.tick()
        valid: Perplexity = self.state.best
        row = {"kind": "test", "epoch": self.state.best_epoch}
        row |= valid.row("valid") | test.row("test")
        if self.vocabulary is not None:
            losses, targets = (values.flatten() for values in tokens)
            bands = vocabulary_bands(losses, targets, self.vocabulary, self.corpus)
            row["test_bands"] = [asdict(band) for band in bands]
        if self.world.is_main:
            self.run.append_test(row | {"elapsed": self.state.elapsed})
        return valid, test

    def read_test(self, row: dict[str, Any]) -> tuple[Perplexity, Perplexity]:
        text = self.test_text
        tokens, size = text[1:].numel(), predicted_bytes(text, self.token_bytes)
        nll = float(row["test_loss"]) * tokens
        return self.state.best, Perplexity(nll, tokens, text.shape[1], size)


def text_checksum(ids: Ids) -> int:
    """A number for all splits together, which the checkpoint has."""
    return reduce(lambda checksum, split: zlib.crc32(split.tobytes(), checksum), ids, 0)
