"""Training of translators: what a step, a validation and the test are.

A step sums the gradients of a few batches of pairs and divides by their target tokens.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drill.data import PairBatch, PairBatches, Pairs
from drill.data.parallel.pairs import TranslationData
from drill.kernels.transformer.residual_norm import choose_sublayer
from drill.layers import MatrixLayer
from drill.models.translator import Translator
from drill.training.cuda_graphs import CapturedGradients, cuda_graphs_blocker
from drill.training.distributed import World, data_parallel
from drill.training.loop import TRAINING_LOG, Task, Watch, diverged_if_nan
from drill.training.optim import ScheduledOptimizer
from drill.training.options import TranslationOptions
from drill.training.precision import autocast_to
from drill.training.run import checkpoint
from drill.training.run.checkpoint import copied, copy_into, load_into
from drill.training.run.folder import RunFolder
from drill.training.state import Score, TrainingState, saved
from drill.translation.bleu import Scores, bleu_metric, corpus_scores
from drill.translation.evaluate import (
    TranslationResult,
    best_translations,
    evaluate_translator,
    translation_loss,
)
from drill.translation.search.decoding import Search
from drill.translation.step import backward, captured_backward, sum_loss_options

logger = logging.getLogger("drill")
training_log = logging.getLogger(TRAINING_LOG)


@dataclass(kw_only=True)
class TranslationState(TrainingState):
    """The next step starts at batch ``position`` of the ``epoch_size`` of this process.

    ``nll`` sums the losses of target tokens, times the number of processes.
    """

    score_type: ClassVar[type] = Score

    average: int = 1  # how many validations ``recent`` is of
    validations: int = saved(0)
    recent: dict[int, dict[str, Tensor] | None] = field(default_factory=dict)
    """Weights of the last validations by step, None once they are on disk."""

    def loss_terms(self) -> int:
        return self.tokens

    def update_best(self, score: Score, model: nn.Module, world: World) -> bool:
        """Also copy the weights for the average, unless they are the initial ones."""
        if self.step > 0:
            self.validations += 1
            if self.average > 1:
                self.recent[self.step] = copied(model)
                for step in sorted(self.recent)[: -self.average]:
                    del self.recent[step]
        return super().update_best(score, model, world)

    def state_dict(self, world: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state_dict(world)
        return tensors, numbers | {
            "position": self.position * world.size,
            "recent": list(self.recent),
        }

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], world: World
    ) -> None:
        super().load_state_dict(tensors, numbers, world)
        # A step is a multiple of all processes, so only an epoch's last turn is rounded.
        self.position = min(self.epoch_size, -(-numbers["position"] // world.size))
        self.recent = dict.fromkeys(numbers["recent"])

    def save(
        self, model: nn.Module, optimizer: ScheduledOptimizer, run: RunFolder, world: World
    ) -> None:
        """Also write the recent weights, and remove those that no checkpoint knows any more."""
        for step, weights in self.recent.items():
            if weights is not None and world.is_main:
                checkpoint.save(run.recent(step), weights, {"step": step})
        self.recent = dict.fromkeys(self.recent)
        super().save(model, optimizer, run, world)
        if world.is_main:
            run.forget_recent(self.recent)

    @torch.no_grad()
    def average_recent(self, run: RunFolder) -> dict[str, Tensor]:
        """The mean of the recent weights, all of which are on disk."""
        fix = f"restore it from a copy, or remove {run.last} to start over"
        total: dict[str, Tensor] = {}
        for step in sorted(self.recent):
            weights, _ = checkpoint.load(run.recent(step), fix)
            for name, tensor in weights.items():
                total[name] = total[name] + tensor if name in total else tensor.clone()
        return {name: tensor / len(self.recent) for name, tensor in total.items()}


class TranslationTask(Task):
    """What ``fit`` asks of a translator.

    ``valid`` of the outcome is the loss of the tested weights, or of the best ones so far. If the
    test was made by an earlier command, its hypotheses are only in the folder.
    """

    model: Translator
    options: TranslationOptions
    state: TranslationState

    def __init__(
        self,
        model: Translator,
        data: TranslationData,
        run: RunFolder,
        optimizer: ScheduledOptimizer,
        options: TranslationOptions,
        world: World = World(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__(model, run, optimizer, options, world)
        bleu_metric(data.language)  # a missing package shows now, not at the end
        self.data = data
        self.pair_batches = PairBatches(
            data.train,
            options.max_tokens,
            options.seed,
            multiple=options.pad_to_multiple_of,
            rank=world.rank,
            size=world.size,
        )
        steps = options.gradient_accumulation_steps
        self.batches_per_step = world.per_process(steps, "training.gradient_accumulation_steps")
        self.state = TranslationState(
            **self.initial_state(),
            epoch_size=len(self.pair_batches),
            data_checksum=data.checksum(),
            average=options.average_checkpoints,
        )

    def kernels(self, autocast: torch.dtype | None) -> list[str]:
        transformer, layer = self.model.transformer, self.model.layer
        impl, reason = choose_sublayer(transformer.impl, next(self.model.parameters()))
        if self.options.compile and transformer.impl == "auto":
            impl, reason = "reference", "torch.compile fuses by itself"
        parts = [f"residuals and norms {impl} ({reason})"]
        with autocast_to(self.device, autocast):
            if isinstance(layer, MatrixLayer):
                parts += layer.kernel_summary(self.options.max_tokens)
            else:  # smoothed, it has a loss of its own
                parts += layer.matrix.label_kernel_summary()
        blocker = self._capture_blocker()
        mode = "replayed as CUDA graphs" if blocker is None else f"launched one by one: {blocker}"
        return [*parts, f"batches {mode}"]

    def _capture_blocker(self) -> str | None:
        """Why batches are not replayed as CUDA graphs; None if they are."""
        blocker = cuda_graphs_blocker(self.options.cuda_graphs, self.device, self.world.size)
        return blocker or ("training.compile is set" if self.options.compile else None)

    def prepare(self, autocast: torch.dtype | None) -> None:
        options = self.options
        self.autocast = autocast
        self.search = Search(
            beam_size=options.beam_size, length_penalty=options.length_penalty, autocast=autocast
        )
        if options.compile:
            self.model.transformer.compile(dynamic=True)  # sentences have all lengths
        self.trained = data_parallel(self.model, self.world)
        model, loss_options = self.model, sum_loss_options(options.label_smoothing)

        def scaled_loss(
            source: Tensor, target_in: Tensor, target_out: Tensor, scale: Tensor
        ) -> Tensor:
            """A graph for every shape of a batch; ``scale`` is 1 / tokens of the step."""
            with autocast_to(source.device, autocast):
                nll = model(source, target_in, target_out, **loss_options)
            return nll * scale

        blocker = self._capture_blocker()
        self.captured: CapturedGradients | None = None
        if blocker is None:
            self.captured = CapturedGradients(self.model, scaled_loss)
        elif self.device.type == "cuda" and self.world.is_main and options.cuda_graphs:
            logger.warning("batches are launched, not replayed as CUDA graphs: %s", blocker)

    def batches(self) -> Iterator[list[PairBatch]]:
        if self.world.is_main:
            self.run.averaged.unlink(missing_ok=True)  # of an earlier, shorter run
        epoch = self.pair_batches.epoch(self.state.epoch, self.state.position)
        yield from iter(lambda: list(islice(epoch, self.batches_per_step)), [])

    def step(self, batch: list[PairBatch]) -> None:
        tokens = int(self.world.sum(sum(b.target_tokens for b in batch)))
        if self.captured is not None:
            nll = captured_backward(self.captured, batch, tokens, self.device)
        else:
            smoothing = self.options.label_smoothing
            with autocast_to(self.device, self.autocast):
                nll = backward(self.trained, self.model, batch, tokens, smoothing, self.device)
        self.state.nll += nll
        self.optimizer.step(1, 1, self.state.progress())
        self.state.position += len(batch)
        self.state.tokens += tokens

    def validate(self, watch: Watch) -> tuple[Score, dict[str, Any]]:
        """The loss of the validation text, and its BLEU every ``bleu_every`` validations."""
        state, every = self.state, self.options.bleu_every
        bleu = every is not None and (state.step == 0 or (state.validations + 1) % every == 0)
        loss = self._valid_loss(watch("validation"))
        if not bleu:
            return loss, {}
        text, watching = self.data.text.valid, watch("validation, BLEU")
        with diverged_if_nan(f"the translations after step {state.step}"):
            hypotheses = best_translations(
                self.model, self.data.subwords, text.source, self.search, watching
            )
        scores = corpus_scores(hypotheses, text.target, language=self.data.language)
        return loss, {"valid_bleu": scores.bleu}

    def _valid_loss(self, count: Callable[[int, int], None]) -> Score:
        """In batches no larger than those of training, so that they fit into memory."""
        with diverged_if_nan(f"the validation after step {self.state.step}"):
            return translation_loss(
                self.model,
                self.data.valid,
                max_tokens=self.options.max_tokens,
                autocast=self.search.autocast,
                progress=count,
            )

    def test(self, watch: Watch) -> tuple[Score, TranslationResult]:
        """Test the best weights; write their translations and the row of metrics.jsonl."""
        state, data, run, search = self.state, self.data, self.run, self.search
        self.captured = None  # frees the memory of its graphs for the search
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        weights, valid = self._load_best_weights(watch)
        with diverged_if_nan(f"the test of the {weights} weights in {run.path}"):
            test = evaluate_translator(
                self.model,
                data.subwords,
                data.text.test,
                data.test,
                search,
                language=data.language,
                progress=watch("test"),
            )
        run.write_lines(run.hypotheses("test", data.language), test.hypotheses)
        state.tick()
        run.append_test(
            {
                "kind": "test",
                "epoch": state.best_epoch,  # of the best single weights
                "weights": weights,
                **({"averaged_steps": sorted(state.recent)} if weights == "averaged" else {}),
                **valid.row("valid"),
                **test.fit.row("test"),
                "test_bleu": test.scores.bleu,
                "test_tokenised_bleu": test.scores.tokenised_bleu,
                "test_chrf": test.scores.chrf,
                "test_exact": test.exact,
                "bleu_signature": test.scores.signature,
                "tokenised_signature": test.scores.tokenised_signature,
                "chrf_signature": test.scores.chrf_signature,
                "beam": search.beam_size,
                "length_penalty": search.length_penalty,
                "elapsed": state.elapsed,
            }
        )
        return valid, test

    def _load_best_weights(self, watch: Watch) -> tuple[str, Score]:
        """Load the weights to test: the best ones, or the average of the last ones if better."""
        state, run = self.state, self.run
        assert state.best is not None
        if len(state.recent) > 1:
            mean = state.average_recent(run)
            copy_into(self.model, mean, str(run.last.parent))
            valid = self._valid_loss(watch("validation of the mean"))
            better = valid.loss < state.best.loss
            state.tick()
            run.append(
                {
                    "kind": "average",
                    "epoch": state.last_epoch(),
                    "steps": sorted(state.recent),
                    **valid.row("valid"),
                    "best": better,
                    "elapsed": state.elapsed,
                }
            )
            training_log.info(
                "average of the last %d checkpoints: valid ppl %.2f, best single %.2f; testing %s",
                len(state.recent),
                valid.perplexity,
                state.best.perplexity,
                "the average" if better else "the best single",
            )
            if better:
                run.save_averaged(mean, {"steps": sorted(state.recent), "valid": asdict(valid)})
                return "averaged", valid
        load_into(self.model, run.best)
        return "best", state.best

    def read_test(self, row: dict[str, Any]) -> tuple[Score, TranslationResult]:
        """Without the translations: those in the folder may be newer."""
        data = self.data

        def loss(name: str, pairs: Pairs) -> Score:
            tokens = int(pairs.lengths[1].sum()) + len(pairs)
            return Score(float(row[f"{name}_loss"]) * tokens, tokens)

        scores = Scores(
            len(data.text.test),
            row["test_bleu"],
            row["bleu_signature"],
            row["test_chrf"],
            row["chrf_signature"],
            row["test_tokenised_bleu"],
            row["tokenised_signature"],
        )
        test = TranslationResult(loss("test", data.test), scores, row["test_exact"], ())
        return loss("valid", data.valid), test
