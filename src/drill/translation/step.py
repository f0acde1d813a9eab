"""One update of a translator after another: gradients of a few batches, launched or replayed."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.data import IGNORE, DataError, PairBatch
from drill.kernels.transformer.residual_norm import choose_sublayer
from drill.layers import FullSoftmax, MatrixLayer, OutputLayer, TiedSoftmax, WrappingLayer
from drill.layers.sampled import foldable
from drill.models.transformer.attention import attention_ways
from drill.models.translator import Translator
from drill.training.cuda_graphs import CapturedGradients
from drill.training.distributed import World
from drill.training.precision import autocast_to, sum_dtype


def own_batches(gradient_accumulation_steps: int, world: World) -> int:
    """Batches an update for each process."""
    if gradient_accumulation_steps % world.size != 0:
        raise DataError(
            f"{gradient_accumulation_steps} batches an update cannot be shared by {world.size} "
            f"processes; set training.gradient_accumulation_steps to a multiple of {world.size}"
        )
    return gradient_accumulation_steps // world.size


def why_not_captured(
    cuda_graphs: bool, compile: bool, device: torch.device, world_size: int
) -> str | None:
    """Why batches are launched one by one; None where they can be replayed."""
    if not cuda_graphs:
        return "asked for"
    if device.type != "cuda":
        return _no_graphs(device)
    if world_size > 1:
        return f"{world_size} processes exchange gradients, which no graph holds"
    return "training.compile is set" if compile else None


def translation_ways(
    model: Translator,
    obstacle: str | None,
    max_tokens: int,
    autocast: torch.dtype | None,
    compile: bool = False,
    batches: int = 1,
    world_size: int = 1,
) -> list[str]:
    """How a run is trained and searched where the model is; ``obstacle`` is what
    ``why_not_captured`` gives, ``batches`` are those of an update for each process."""
    parameter = next(model.parameters())
    parts = attention_ways(model.transformer.decoder[0].attention, autocast)
    impl, reason = choose_sublayer(model.transformer.impl, parameter)
    if compile and model.transformer.impl == "auto":
        impl, reason = "reference", "torch.compile fuses by itself"
    parts.append(f"residuals and norms {impl} ({reason})")
    with autocast_to(parameter.device, autocast):
        if isinstance(model.layer, MatrixLayer):
            parts += model.layer.kernel_summary(max_tokens)
        else:  # smoothed, it has a loss of its own
            parts += model.layer.label_kernel_summary()
    if batches > 1 and _encodes(model.layer):
        shared = obstacle is not None and world_size == 1
        parts.append(f"labels encoded once {'an update' if shared else 'a batch'}")
    no_graph = None if parameter.is_cuda else _no_graphs(parameter.device)
    if foldable(model.layer) is None:
        no_graph = no_graph or f"{type(model.layer).__name__} does not fold"
    return [*parts, f"batches {_replayed(obstacle)}", f"beam search {_replayed(no_graph)}"]


def _encodes(layer: OutputLayer) -> bool:
    """Whether its labels are more than a table of rows."""
    inner = layer.layer if isinstance(layer, WrappingLayer) else layer
    return not isinstance(inner, TiedSoftmax | FullSoftmax)


def _no_graphs(device: torch.device) -> str:
    return f"CUDA graphs need an NVIDIA GPU, not {device.type}"


def _replayed(obstacle: str | None) -> str:
    return "replayed as CUDA graphs" if obstacle is None else f"launched one by one: {obstacle}"


def in_updates(batches: Iterator[PairBatch], size: int) -> Iterator[list[PairBatch]]:
    """So many batches at a time; what is left of an epoch is an update too."""
    return iter(lambda: list(islice(batches, size)), [])


def backward(
    trained: nn.Module,  # the model, or what wraps it for several processes
    model: Translator,
    update: list[PairBatch],
    tokens: int,  # targets of the update, over all processes
    label_smoothing: float,
    device: torch.device,
) -> Tensor:
    """Add the gradients of the mean over ``tokens``; gives the summed loss of this process.

    Both are multiplied by the number of processes, over which gradients and losses are averaged.
    """
    several = trained if isinstance(trained, DistributedDataParallel) else None
    size = 1 if several is None else torch.distributed.get_world_size()
    total = torch.zeros((), dtype=sum_dtype(device), device=device)
    # Several processes sum gradients during backward, which a shared encoding would come after.
    alone = several is None and len(update) > 1
    with model.layer.shared_labels() if alone else nullcontext():
        for left, batch in zip(range(len(update))[::-1], update, strict=True):
            source, target_in, target_out = _on(device, batch)
            with several.no_sync() if several and left else nullcontext():
                nll = trained(
                    source,
                    target_in,
                    target_out,
                    label_smoothing=label_smoothing,
                    ignore_index=IGNORE,
                    reduction="sum",
                    check=False,
                )
                (nll * (size / tokens)).backward()
            total += nll.detach()
    return total * size


def capturing(
    model: Translator, label_smoothing: float, autocast: torch.dtype | None
) -> CapturedGradients:
    """Gradients of the summed loss times the last input, one graph for every shape of a batch."""

    def loss(source: Tensor, target_in: Tensor, target_out: Tensor, scale: Tensor) -> Tensor:
        with autocast_to(source.device, autocast):
            nll = model(
                source,
                target_in,
                target_out,
                label_smoothing=label_smoothing,
                ignore_index=IGNORE,
                reduction="sum",
                check=False,
            )
        return nll * scale

    return CapturedGradients(model, loss)


def replayed(
    gradients: CapturedGradients, update: list[PairBatch], tokens: int, device: torch.device
) -> Tensor:
    """What ``backward`` does for one process, by replays, but that each encodes its labels anew.

    A shared encoding would have to live through all graphs of an update: an autograd graph that is
    made on one stream and holds nodes which recordings on another then meet.
    """
    scale = torch.full((), 1.0 / tokens, device=device)
    total = torch.zeros((), dtype=sum_dtype(device), device=device)
    for batch in update:
        total += gradients(*_on(device, batch), scale)
    return total * tokens


def _on(device: torch.device, batch: PairBatch) -> Iterator[Tensor]:
    """Source, target_in and target_out; a GPU fetches them while the host goes on."""
    for part in (batch.source, batch.target_in, batch.target_out):
        pinned = part.pin_memory() if device.type == "cuda" else part
        yield pinned.to(device, non_blocking=True)
