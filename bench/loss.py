"""How fast, how small, how exact is the loss? drill's implementations, and those of others."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from setting import IGNORED, SIZES, Head, Setting, head, parser, settings, training_step
from table import Cell, Report, device_ratio, mib, ratio
from timing import Prepare, Step, fastest, measure
from torch import Tensor

from drill.kernels.loss.nll import nll

FLOOR, BASE = "GEMM floor", "drill reference"
ALIGN = 64

Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(hidden, weight, targets, bias) -> the mean over targets that are not ignored"""


def drill_nll(**options: Any) -> Loss:
    return lambda hidden, weight, targets, bias: nll(
        hidden, weight, targets, bias, ignore_index=IGNORED, **options
    )


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, ignore_index=IGNORED)


def compiled() -> Loss:
    torch.compiler.reset()
    return torch.compile(plain, dynamic=False)


def torch_chunked(**options: Any) -> Loss:
    if not hasattr(F, "linear_cross_entropy"):
        raise ImportError(f"torch {torch.__version__} has no F.linear_cross_entropy")
    chosen = torch.nn.LinearCrossEntropyOptions(**options) if options else None
    return lambda hidden, weight, targets, bias: F.linear_cross_entropy(
        hidden, weight, targets, linear_bias=bias, ignore_index=IGNORED, options=chosen
    )


def liger(accumulate: torch.dtype | None = None) -> Loss:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return lambda hidden, weight, targets, bias: liger_fused_linear_cross_entropy(
        hidden, weight, targets, bias, ignore_index=IGNORED, accum_dtype=accumulate
    )


def cut(**options: Any) -> Loss:
    """Its kernels take half-precision hidden states, so under autocast it is given such ones."""
    from cut_cross_entropy import linear_cross_entropy

    def loss(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_autocast_enabled(hidden.device.type):
            hidden, weight = (x.to(torch.bfloat16) for x in (hidden, weight))
        known = {} if bias is None else {"bias": bias}
        return linear_cross_entropy(
            hidden, weight, targets, ignore_index=IGNORED, **known, **options
        )

    return loss


def cut_takes_bias() -> bool:
    try:
        from cut_cross_entropy import linear_cross_entropy
    except ImportError:
        return True
    return "bias" in inspect.signature(linear_cross_entropy).parameters


CUT: dict[str, dict[str, Any]] = {
    "cut-cross-entropy cce": {},
    "cut-cross-entropy cce, filter_eps=None": {"filter_eps": None},
    "cut-cross-entropy cce_kahan_full_c": {"impl": "cce_kahan_full_c"},
    "cut-cross-entropy cce_exact": {"impl": "cce_exact"},
}


def losses(setting: Setting, args: argparse.Namespace) -> dict[str, Callable[[], Loss]]:
    """Every implementation by name, imported when called."""
    found: dict[str, Callable[[], Loss]] = {
        f"drill {impl}": lambda impl=impl: drill_nll(impl=impl)
        for impl in ("reference", "chunked", "triton", "auto")
    }
    found["drill auto, check=False"] = lambda: drill_nll(check=False)
    bounded = "triton" if setting.device.type == "cuda" else "chunked"
    for budget in args.memory:
        found[f"drill {bounded}, {budget} MiB"] = lambda budget=budget: drill_nll(
            impl=bounded, memory=budget * 2**20
        )
    found["F.cross_entropy(F.linear())"] = lambda: plain
    if not args.quick:
        found["the same, torch.compile"] = compiled
    found["F.linear_cross_entropy"] = torch_chunked
    for policy in ("auto", "accurate"):
        found[f"F.linear_cross_entropy, {policy} chunks"] = lambda policy=policy: torch_chunked(
            acc_policy=policy
        )
    found["liger-kernel"] = liger
    if setting.dtype == "bfloat16":  # else its sums are float32 anyway
        found["liger-kernel, float32 sums"] = lambda: liger(torch.float32)
    for name, options in CUT.items():
        found[name] = lambda options=options: cut(**options)
    return found


def contestants(setting: Setting, inputs: Head, args: argparse.Namespace) -> dict[str, Prepare]:
    hidden, weight, bias, targets = inputs

    def prepare(name: str, make: Callable[[], Loss]) -> Step:
        if setting.device.type == "cpu" and name.startswith(("liger", "cut")):
            raise RuntimeError("needs a CUDA device")
        loss = make()
        if args.no_bias or (name in CUT and not cut_takes_bias()):
            return training_step(
                lambda: loss(hidden, weight, targets, None), [hidden, weight], setting
            )
        return training_step(
            lambda: loss(hidden, weight, targets, bias), [hidden, weight, bias], setting
        )

    return {FLOOR: lambda: products(setting, inputs)} | {
        name: lambda name=name, make=make: prepare(name, make)
        for name, make in losses(setting, args).items()
    }


def products(setting: Setting, inputs: Head) -> Step:
    """The three matrix products no exact implementation can do without, and nothing else.

    The labels as they are or padded to a multiple of ``ALIGN``, whichever is faster: cuBLAS takes
    a slow path for a ragged number of labels, which an implementation need not take.
    """
    hidden, weight = (x.detach().to(setting.products) for x in (inputs.hidden, inputs.weight))

    def bare(weight: Tensor) -> Step:
        def step() -> Sequence[Tensor]:
            logits = hidden @ weight.T
            return logits, logits @ weight, logits.T @ hidden

        return step

    missing = -len(weight) % ALIGN
    if not missing:
        return bare(weight)
    return fastest([bare(weight), bare(F.pad(weight, (0, 0, 0, missing)))], setting.device)


class Truth:
    """Gradients of the same inputs in float64, or in float32 where that does not fit."""

    def __init__(self, setting: Setting, inputs: Head) -> None:
        tokens, labels, width = setting.size
        needed = 8 * (4 * tokens * labels + 4 * labels * width)
        fits = setting.device.type == "cpu" or needed < torch.cuda.mem_get_info()[0] // 2
        self.dtype = torch.float64 if fits else torch.float32
        self.inputs = inputs
        self.known: dict[int, tuple[Tensor, ...]] = {}  # by the number of gradients

    def errors(self, found: Sequence[Tensor]) -> dict[str, Any]:
        """|found - truth| / |truth| of d hidden and d weight; two gradients mean no bias."""
        if found[0].shape != self.inputs.hidden.shape:  # the bare products
            return {}
        if len(found) not in self.known:
            self.known[len(found)] = self._gradients(with_bias=len(found) == 3)
        return {
            f"{name}_error": ((x.to(self.dtype) - truth).norm() / truth.norm()).item()
            for name, x, truth in zip(
                ("hidden", "weight"), found, self.known[len(found)], strict=False
            )
        } | {"bias": len(found) == 3}

    def _gradients(self, with_bias: bool) -> tuple[Tensor, ...]:
        mode, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        hidden, weight, bias = (x.detach().to(self.dtype).requires_grad_() for x in self.inputs[:3])
        loss = plain(hidden, weight, self.inputs.targets, bias if with_bias else None)
        gradients = torch.autograd.grad(loss, [hidden, weight])
        torch.backends.cuda.matmul.allow_tf32 = mode
        return gradients


def error(name: str) -> Cell:
    return lambda result: f"{result.found[name]:.1e}" if result.found else ""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", choices=SIZES, help="default: all; on a CPU ptb")
    options.add_argument("--sharp", action="store_true", help="peaked softmax, as when trained")
    options.add_argument("--no-bias", action="store_true", help="heads without a bias")
    options.add_argument("--ignored", type=float, default=0.0, help="fraction of ignored targets")
    options.add_argument(
        "--memory", type=int, nargs="+", default=[], metavar="MiB", help="budgets to try"
    )
    args = options.parse_args()
    report = Report("loss", args.device, args.json)
    for setting in settings(args, list(SIZES)):
        inputs = head(setting, args.sharp, args.ignored)
        truth = Truth(setting, inputs)
        results = measure(
            contestants(setting, inputs, args),
            args.device,
            seconds=0 if args.quick else args.seconds,
            inspect=truth.errors,
            waiting=("liger", "cut", "F.linear_cross_entropy"),
        )
        columns: dict[str, Cell] = {
            "x floor": ratio(results[FLOOR]),
            **({"x floor (graph)": device_ratio(results[FLOOR])} if report.cuda else {}),
            "x reference": ratio(results[BASE]),
            "MiB beyond gradients": lambda r: mib(r.working_memory) if r.found else "",
            "d hidden error": error("hidden_error"),
            "d weight error": error("weight_error"),
        }
        report.add(setting, results, columns, sharp=args.sharp, ignored=args.ignored)
        report.note(f"errors: relative, against {truth.dtype} from the same inputs")
        for name, result in results.items():
            if result.found.get("bias") is False and not args.no_bias:
                report.note(f"{name}: takes no bias; timed and compared without one")
    report.finish()


if __name__ == "__main__":
    main()
