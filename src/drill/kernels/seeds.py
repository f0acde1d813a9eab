"""Seeds of dropout that kernels draw inside.

A seed lies on the device: drawn on the host it would be the same in every replay of a CUDA graph.
"""

import torch
from torch import Tensor


def drawn_seed(device: torch.device) -> Tensor:
    """(1,), of the device's generator: ``torch.manual_seed`` gives it again."""
    return torch.randint(2**62, (1,), device=device)


def drawn_seeds(count: int, device: torch.device) -> tuple[Tensor, ...]:
    """``count`` of them by one launch, each (2,) of which the first counts: so 16 divides every
    address, as it does those of memory by itself, and kernels need not be compiled for others.
    """
    if count == 0:
        return ()
    return torch.randint(2**62, (count, 2), device=device).unbind(0)
