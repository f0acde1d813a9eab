"""Training state and steps of a language model, launched or replayed as CUDA graphs.

A step of a recurrent model is hundreds of small launches, which take a host longer than the GPU. A
CUDA graph is one launch. It has fixed addresses and shapes, so there is one for every segment
length; all read ids, state and learning rate from the same buffers.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.data import Segment, SequenceLengths, inputs_and_targets
from drill.kernels.runtime.overlap import overlap_scope
from drill.language_modeling.evaluation.perplexity import Perplexity
from drill.models.encoder import State, map_state
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphCache, GraphCapture, cuda_graphs_blocker
from drill.training.distributed import World
from drill.training.loop import TRAINING_LOG
from drill.training.optim import ScheduledOptimizer
from drill.training.precision import autocast_to
from drill.training.state import TrainingState

logger = logging.getLogger(TRAINING_LOG)


@dataclass(kw_only=True)
class LanguageModelState(TrainingState):
    """The next segment starts at row ``position`` of ``epoch_size`` rows.

    ``nll`` sums mean losses of segments times their lengths.
    """

    score_type: ClassVar[type] = Perplexity

    lengths: SequenceLengths  # of the segments to come
    hidden: State | None = None
    untied: bool = False  # whether the output layer has been replaced, see untie.py

    def loss_terms(self) -> int:
        return self.position

    def epoch_done(self) -> bool:
        return self.position >= self.epoch_size - 2  # a segment has at least 2 rows and a target

    def next_epoch(self) -> None:
        super().next_epoch()
        self.hidden = None

    def state_dict(self, world: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = super().state_dict(world)
        for i, layer in enumerate(self.hidden or ()):
            for j, tensor in enumerate(layer):
                tensors[f"hidden/{i}/{j}"] = torch.cat(world.all_gather(tensor), 1)
        numbers["lengths"] = self.lengths.state()
        numbers["untied"] = self.untied
        numbers["layers"] = [] if self.hidden is None else [len(layer) for layer in self.hidden]
        return tensors, numbers

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], world: World
    ) -> None:
        super().load_state_dict(tensors, numbers, world)
        self.lengths = SequenceLengths.from_state(numbers["lengths"])
        self.untied = numbers["untied"]
        hidden = tuple(
            tuple(
                world.local_batch(tensors[f"hidden/{i}/{j}"]).to(self.nll.device)
                for j in range(count)
            )
            for i, count in enumerate(numbers["layers"])
        )
        self.hidden = hidden or None


class Steps:
    """Forward, backward and optimizer step, without CUDA graphs.

    ``trained`` is the model, or its DistributedDataParallel; ``data`` (rows, B) is on the device;
    ``options`` are those of the model's loss.
    """

    def __init__(
        self,
        trained: nn.Module,
        data: Tensor,
        optimizer: ScheduledOptimizer,
        *,
        bptt: int,
        autocast: torch.dtype | None = None,
        micro_batch: int | None = None,
        options: dict[str, Any],
    ) -> None:
        self.trained, self.data, self.optimizer, self.bptt = trained, data, optimizer, bptt
        self.autocast, self.micro_batch, self.options = autocast, micro_batch, options

    def __call__(self, state: LanguageModelState, segment: Segment, progress: float) -> None:
        """Train on one segment; adds its loss to ``state.nll`` and carries ``state.hidden``."""
        inputs, targets = inputs_and_targets(self.data, segment)  # (T, B) each
        with autocast_to(self.data.device, self.autocast):
            nll, state.hidden = self._backward(inputs, targets, state.hidden)
        self.optimizer.step(segment.sampled_length, self.bptt, progress)
        state.nll += nll * segment.length

    def _backward(
        self, inputs: Tensor, targets: Tensor, hidden: State | None
    ) -> tuple[Tensor, State]:
        """Add the gradients of one batch; returns its mean loss and the final state."""
        trained, micro_batch, batch = self.trained, self.micro_batch, inputs.shape[1]
        if micro_batch is None or micro_batch >= batch:
            loss = trained(inputs, targets, hidden, **self.options)
            loss.total.backward()
            return loss.nll, loss.state
        ddp = trained if isinstance(trained, DistributedDataParallel) else None
        model: LanguageModel = trained.module if ddp else trained  # type: ignore[assignment]
        nll = inputs.new_zeros((), dtype=torch.float32)
        states: list[State] = []
        # DDP reduces gradients during backward; those of shared labels would come after that.
        with nullcontext() if ddp else model.layer.shared_labels():
            for start in range(0, batch, micro_batch):
                part = slice(start, min(batch, start + micro_batch))
                share = (part.stop - part.start) / batch
                carried = hidden and map_state(lambda x, part=part: x[:, part].contiguous(), hidden)
                with ddp.no_sync() if ddp and part.stop < batch else nullcontext():
                    loss = trained(inputs[:, part], targets[:, part], carried, **self.options)
                    (loss.total * share).backward()
                nll = nll + loss.nll * share
                states.append(loss.state)
        return nll, map_state(lambda *parts: torch.cat(parts, dim=1), *states)


class CapturedSteps(Steps):
    """The same steps as CUDA graphs: the first of a segment length is launched, others replayed.

    Once the optimizer reports that its step cannot be replayed, all are launched. Graphs are
    captured again when modes of modules or addresses of parameters have changed.
    """

    def __init__(
        self,
        trained: LanguageModel,
        data: Tensor,
        optimizer: ScheduledOptimizer,
        **settings: Any,
    ) -> None:
        super().__init__(trained, data, optimizer, **settings)
        self.model = trained
        self.graphs = GraphCapture(data.device, instead="set training.cuda_graphs=false")
        self.ids = data.new_empty((0, data.shape[1]))  # (longest + 1, B)
        self.hidden: State | None = None
        self.parameters = list(trained.parameters())
        self.blocker: str | None = None
        self.cache: GraphCache[Callable[[], None]] = GraphCache(trained)

    def __call__(self, state: LanguageModelState, segment: Segment, progress: float) -> None:
        length = segment.length
        self._carry(state)
        if len(self.ids) <= length:
            self.ids = self.data.new_empty((max(length + 1, 2 * self.bptt), self.data.shape[1]))
            self.cache.forget()  # graphs read where the ids were
        self.optimizer.prepare(progress)
        self.cache.drop_if_stale(self.optimizer.phase)
        self.ids[: length + 1].copy_(self.data[segment.start : segment.start + length + 1])
        replays = self.cache.replays
        new = length not in replays
        if self.blocker is not None or (new and not self.cache.admit(length)):
            self.graphs.warm_up(lambda: self._launch(state, segment, progress))
            return
        self.optimizer.prepare_step(segment.sampled_length, self.bptt, progress)
        if new:
            replays[length] = self.graphs.capture(
                lambda: self._work(state, length, self.optimizer.apply_step)
            )
        replays[length]()
        self.optimizer.mark_replayed()

    def _launch(self, state: LanguageModelState, segment: Segment, progress: float) -> None:
        def step() -> None:
            blocker = self.optimizer.replay_blocker()
            if blocker is not None and self.blocker is None:
                self.blocker = blocker
                self.cache.forget()
                logger.info("training: steps are launched one by one: %s", blocker)
            self.optimizer.step(segment.sampled_length, self.bptt, progress)

        self._work(state, segment.length, step)

    def _work(self, state: LanguageModelState, length: int, step: Callable[[], None]) -> None:
        """Forward, backward, and ``step`` with the gradients."""
        assert self.hidden is not None
        inputs, targets = self.ids[:length], self.ids[1 : length + 1]
        with autocast_to(self.data.device, self.autocast), overlap_scope(self.parameters):
            loss = self.model(inputs, targets, self.hidden, **self.options)
            loss.total.backward()
        step()
        state.nll += loss.nll * length
        torch._foreach_copy_(_flat(self.hidden), _flat(loss.state))

    def _carry(self, state: LanguageModelState) -> None:
        """Copy ``state.hidden`` into the buffers that graphs read and write."""
        if self.hidden is None:
            self.hidden = map_state(Tensor.clone, self.model.initial_state(self.data.shape[1]))
        if state.hidden is None:
            torch._foreach_zero_(_flat(self.hidden))
        elif state.hidden is not self.hidden:
            torch._foreach_copy_(_flat(self.hidden), _flat(state.hidden))
        state.hidden = self.hidden


def capture_blocker(
    model: LanguageModel,
    optimizer: ScheduledOptimizer,
    cuda_graphs: bool,
    world_size: int,
    micro_batch: int | None,
) -> str | None:
    """Why steps are not replayed as CUDA graphs; None if they are."""
    blocker = cuda_graphs_blocker(cuda_graphs, next(model.parameters()).device, world_size)
    if blocker is not None:
        return blocker
    if micro_batch is not None:
        return "a batch is taken in parts"
    if not model.encoder.carries_state:
        return "a window of a Transformer keeps the GPU busy; training.compile fuses its steps"
    if not model.layer.static_shapes:
        return f"sizes inside {type(model.layer).__name__} depend on the targets"
    return optimizer.capture_blocker()


def _flat(state: State) -> list[Tensor]:
    return [tensor for layer in state for tensor in layer]
