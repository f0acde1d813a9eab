"""One training step of a translator: gradients of a few batches, launched or replayed."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drill.data import IGNORE_INDEX, PairBatch
from drill.models.translator import Translator
from drill.training.cuda_graphs import CapturedGradients
from drill.training.precision import sum_dtype


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
