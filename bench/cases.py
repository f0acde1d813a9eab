"""What is measured: named sizes, precisions, and random inputs like those of a real head."""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class Size(NamedTuple):
    tokens: int  # N
    labels: int  # V
    width: int  # d


SIZES = {
    "demo": Size(1000, 5_412, 96),  # the corpus bible, batch 20 of 50 tokens
    "ptb": Size(1400, 10_000, 400),  # Penn Treebank, batch 20 of 70 tokens
    "wt2": Size(5600, 33_278, 400),  # WikiText-2, batch 80
    "nmt": Size(4096, 32_000, 512),  # Transformer base, subwords
    "big": Size(4096, 32_000, 1024),  # Transformer big
    "multi30k": Size(4096, 10_000, 256),  # Transformer small, subwords
    "llm": Size(4096, 128_256, 4096),  # Llama 3, 8B
    "500k": Size(1024, 500_000, 256),  # words, each a label of its own
    "2m": Size(1024, 2_000_000, 256),
}
LARGE = ("big", "500k", "2m")
"""Sizes that are measured only where they are asked for."""
DTYPES = ("float32", "tf32", "bfloat16", "autocast")


@dataclass(frozen=True)
class Case:
    name: str
    size: Size
    dtype: str
    device: torch.device

    @property
    def param_dtype(self) -> torch.dtype:
        """dtype of parameters and hidden states."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    @property
    def matmul_dtype(self) -> torch.dtype:
        """dtype of the operands of matrix products."""
        return torch.float32 if self.dtype in ("float32", "tf32") else torch.bfloat16

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype != "autocast":
            return nullcontext()
        # Its cache of cast weights outlives a step, which no CUDA graph allows.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)


def parser(description: str, sizes: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The options of every benchmark; ``--size`` where it has named sizes."""
    options = argparse.ArgumentParser(description=description)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.add_argument("--device", type=torch.device, default=torch.device(device))
    options.add_argument("--dtype", nargs="+", choices=DTYPES, help="default: by device")
    options.add_argument("--quick", action="store_true", help="small sizes, one round: a try-out")
    options.add_argument("--seconds", type=float, default=0.5, help="timed, per variant")
    options.add_argument("--json", type=Path, metavar="FILE", help="append one JSON row per line")
    if sizes:
        options.add_argument("--size", nargs="+", choices=sizes, help="default: by device")
    return options


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """``--options``: of the label encoder, each for a row of its own."""
    what = "also deep residual with such options: norm=rms,init_range=0.3"
    parser.add_argument("--options", nargs="+", metavar="KEY=VALUE,...", default=[], help=what)


def cases(
    args: argparse.Namespace,
    names: Sequence[str],
    *,
    on_cpu: int = 1,
    on_cuda: Sequence[str] = ("tf32", "bfloat16"),
) -> Iterator[Case]:
    """Every size in every precision; switches torch's tf32 on or off for each.

    Args:
        names: sizes without ``--size``; a CPU runs the first ``on_cpu`` of them.
        on_cuda: precisions of a GPU without ``--dtype``; a CPU runs float32.
    """
    cuda = args.device.type == "cuda"
    if args.dtype and "tf32" in args.dtype and not cuda:
        raise SystemExit("tf32 is a mode of CUDA devices; use --dtype float32")
    for dtype in args.dtype or (on_cuda if cuda else ["float32"]):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        usual = [name for name in names if name not in LARGE]
        for name in args.size or (usual if cuda else usual[:on_cpu]):
            size = SIZES[name]
            if args.quick:
                size = Size(size.tokens // 20, size.labels // 10, size.width // 8)
            print(f"measuring {name}, {dtype}, on {args.device}", file=sys.stderr, flush=True)
            yield Case(name, size, dtype, args.device)


class HeadInputs(NamedTuple):
    """Inputs of a head, each requiring its gradient."""

    hidden: Tensor  # (N, d), N(0, 1)
    weight: Tensor  # (V, d), N(0, 1/sqrt(d)), so that logits are N(0, 1)
    bias: Tensor  # (V,)
    targets: Tensor  # (N,), Zipf


def random_inputs(case: Case, sharp: bool = False) -> HeadInputs:
    """Random inputs.

    Args:
        sharp: turn each hidden state towards its target's row. The target's logit then is
            log(V) + 2 above the others, so its probability is about 0.8, as in a trained model.
    """
    tokens, labels, width = case.size
    torch.manual_seed(0)
    with torch.device(case.device):
        hidden = torch.randn(tokens, width)
        weight = torch.randn(labels, width) / math.sqrt(width)
        bias = torch.randn(labels) / 10
        targets = torch.multinomial(1 / torch.arange(1.0, labels + 1), tokens, replacement=True)
        if sharp:
            hidden += (math.log(labels) + 2) * weight[targets]
    hidden, weight, bias = (x.to(case.param_dtype).requires_grad_() for x in (hidden, weight, bias))
    return HeadInputs(hidden, weight, bias, targets)


def training_step(
    loss: Callable[[], Tensor], inputs: Sequence[Tensor], case: Case
) -> Callable[[], list[Tensor]]:
    """Forward under the case's autocast, backward outside it; returns the gradients."""

    def step() -> list[Tensor]:
        with case.autocast():
            value = loss()
        grads = torch.autograd.grad(value, inputs, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    return step
