"""What is measured: named sizes, precisions, and inputs like those of a real head."""

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

IGNORED = -100


class Size(NamedTuple):
    tokens: int  # N
    labels: int  # V
    width: int  # d


SIZES = {
    "demo": Size(1000, 7_159, 128),  # the embedded corpus, batch 20 of 50 tokens
    "ptb": Size(1400, 10_000, 400),  # Penn Treebank, batch 20 of 70 tokens
    "wt2": Size(5600, 33_278, 400),  # WikiText-2, batch 80
    "nmt": Size(4096, 32_000, 512),  # Transformer base, subwords
    "multi30k": Size(4096, 10_000, 256),  # Transformer small, subwords
    "llm": Size(4096, 128_256, 4096),  # Llama 3, 8B
}
DTYPES = ("float32", "tf32", "bfloat16", "autocast")


@dataclass(frozen=True)
class Setting:
    name: str
    size: Size
    dtype: str
    device: torch.device

    @property
    def parameters(self) -> torch.dtype:
        """dtype of parameters and hidden states."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    @property
    def products(self) -> torch.dtype:
        """dtype of the operands of matrix products."""
        return torch.float32 if self.dtype in ("float32", "tf32") else torch.bfloat16

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype != "autocast":
            return nullcontext()
        # Its cache of cast weights outlives a step, which no CUDA graph allows.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def __str__(self) -> str:
        tokens, labels, width = self.size
        return f"{self.name} N={tokens:,} V={labels:,} d={width:,} {self.dtype}"


def parser(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.add_argument("--device", type=torch.device, default=torch.device(device))
    options.add_argument("--dtype", nargs="+", choices=DTYPES, help="default: by device")
    options.add_argument("--quick", action="store_true", help="small sizes, few rounds: a try-out")
    options.add_argument("--seconds", type=float, default=0.5, help="timed, per contestant")
    options.add_argument("--json", type=Path, metavar="FILE", help="append one JSON row per line")
    return options


def settings(args: argparse.Namespace, names: Sequence[str], on_cpu: int = 1) -> Iterator[Setting]:
    """Every size in every precision; of the ``names`` a CPU does the first ``on_cpu`` by default.

    Without ``--dtype``, a GPU runs tf32 and bfloat16, a CPU float32.
    """
    cuda = args.device.type == "cuda"
    if args.dtype and "tf32" in args.dtype and not cuda:
        raise SystemExit("tf32 is a mode of CUDA devices; use --dtype float32")
    for dtype in args.dtype or (("tf32", "bfloat16") if cuda else ("float32",)):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for name in args.size or (names if cuda else names[:on_cpu]):
            size = SIZES[name]
            if args.quick:
                size = Size(size.tokens // 20, size.labels // 10, size.width // 8)
            yield Setting(name, size, dtype, args.device)


class Head(NamedTuple):
    """Inputs of a head, each requiring its gradient."""

    hidden: Tensor  # (N, d), N(0, 1)
    weight: Tensor  # (V, d), N(0, 1/sqrt(d)), so that logits are N(0, 1)
    bias: Tensor  # (V,)
    targets: Tensor  # (N,), Zipf


def head(setting: Setting, sharp: bool = False, ignored: float = 0.0) -> Head:
    """Random inputs; ``sharp`` turns each hidden state towards its target's row.

    The target's logit then stands log(V) + 2 above the others, so the softmax gives it about 0.8,
    as a trained model does; ``ignored`` is the fraction of targets that are ignore_index.
    """
    tokens, labels, width = setting.size
    torch.manual_seed(0)
    with torch.device(setting.device):
        hidden = torch.randn(tokens, width)
        weight = torch.randn(labels, width) / math.sqrt(width)
        bias = torch.randn(labels) / 10
        targets = torch.multinomial(1 / torch.arange(1.0, labels + 1), tokens, replacement=True)
        if sharp:
            hidden += (math.log(labels) + 2) * weight[targets]
        targets[torch.rand(tokens) < ignored] = IGNORED
    hidden, weight, bias = (
        x.to(setting.parameters).requires_grad_() for x in (hidden, weight, bias)
    )
    return Head(hidden, weight, bias, targets)


def training_step(
    loss: Callable[[], Tensor], inputs: Sequence[Tensor], setting: Setting
) -> Callable[[], list[Tensor]]:
    """Forward under the setting's autocast, backward outside it; returns the gradients."""

    def step() -> list[Tensor]:
        with setting.autocast():
            value = loss()
        grads = torch.autograd.grad(value, inputs, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    return step


def require_memory(needed: int, device: torch.device) -> None:
    """Refuse on a CPU what takes over half of its memory: the system would kill, not refuse."""
    if device.type == "cpu":
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > free // 2:
            raise MemoryError(f"needs {needed / 2**30:.1f} of {free / 2**30:.1f} GiB free")
