"""One training step of a translator: gradients of a few batches, launched or replayed."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.data import IGNORE_INDEX, PairBatch
from drill.kernels.transformer.residual_norm import choose_sublayer
from drill.layers import MatrixLayer
from drill.models.translator import Translator
from drill.training.cuda_graphs import CapturedGradients, cuda_graphs_blocker
from drill.training.precision import autocast_to, sum_dtype


def capture_blocker(
    cuda_graphs: bool, compile: bool, device: torch.device, world_size: int
) -> str | None:
    """Why batches are not replayed as CUDA graphs; None if they are."""
    blocker = cuda_graphs_blocker(cuda_graphs, device, world_size)
    return "training.compile is set" if compile and blocker is None else blocker


def kernel_summary(
    model: Translator,
    blocker: str | None,
    max_tokens: int,
    autocast: torch.dtype | None,
    compile: bool = False,
) -> list[str]:
    """Which kernels training uses on the model's device, and why.

    Args:
        blocker: from ``capture_blocker``.
    """
    parameter = next(model.parameters())
    impl, reason = choose_sublayer(model.transformer.impl, parameter)
    if compile and model.transformer.impl == "auto":
        impl, reason = "reference", "torch.compile fuses by itself"
    parts = [f"residuals and norms {impl} ({reason})"]
    with autocast_to(parameter.device, autocast):
        if isinstance(model.layer, MatrixLayer):
            parts += model.layer.kernel_summary(max_tokens)
        else:  # smoothed, it has a loss of its own
            parts += model.layer.label_kernel_summary()
    batches = "replayed as CUDA graphs" if blocker is None else f"launched one by one: {blocker}"
    return [*parts, f"batches {batches}"]


def backward(
    trained: nn.Module,  # the model, or what wraps it for several processes
    model: Translator,
    batches: list[PairBatch],
    tokens: int,  # targets of the step, over all processes
    label_smoothing: float,
    device: torch.device,
) -> Tensor:
    """Add the gradients of the mean over ``tokens``; returns the summed loss of this process.

    Both are multiplied by the number of processes, over which gradients and losses are averaged.
    """
    ddp = trained if isinstance(trained, DistributedDataParallel) else None
    size = 1 if ddp is None else torch.distributed.get_world_size()
    total = torch.zeros((), dtype=sum_dtype(device), device=device)
    # DDP reduces gradients during backward; those of shared labels would come after that.
    alone = ddp is None and len(batches) > 1
    with model.layer.shared_labels() if alone else nullcontext():
        for left, batch in zip(range(len(batches))[::-1], batches, strict=True):
            with ddp.no_sync() if ddp and left else nullcontext():
                nll = trained(*_to_device(device, batch), **sum_loss_options(label_smoothing))
                (nll * (size / tokens)).backward()
            total += nll.detach()
    return total * size


def sum_loss_options(label_smoothing: float) -> dict[str, Any]:
    """Options of a model's loss: the sum over all targets but padding."""
    options = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "check": False}
    return {"label_smoothing": label_smoothing, **options}


def make_captured_gradients(
    model: Translator, label_smoothing: float, autocast: torch.dtype | None
) -> CapturedGradients:
    """Gradients of the summed loss times the last input, one graph for every shape of a batch."""

    def loss(source: Tensor, target_in: Tensor, target_out: Tensor, scale: Tensor) -> Tensor:
        with autocast_to(source.device, autocast):
            nll = model(source, target_in, target_out, **sum_loss_options(label_smoothing))
        return nll * scale

    return CapturedGradients(model, loss)


def captured_backward(
    gradients: CapturedGradients, batches: list[PairBatch], tokens: int, device: torch.device
) -> Tensor:
    """``backward`` of one process by replays; each batch encodes its labels.

    Labels shared by all batches would need an autograd graph across streams, which capture forbids.
    """
    scale = torch.full((), 1.0 / tokens, device=device)
    total = torch.zeros((), dtype=sum_dtype(device), device=device)
    for batch in batches:
        total += gradients(*_to_device(device, batch), scale)
    return total * tokens


def _to_device(device: torch.device, batch: PairBatch) -> Iterator[Tensor]:
    """Source, target_in and target_out on the device, copied asynchronously to a GPU."""
    for part in (batch.source, batch.target_in, batch.target_out):
        pinned = part.pin_memory() if device.type == "cuda" else part
        yield pinned.to(device, non_blocking=True)
