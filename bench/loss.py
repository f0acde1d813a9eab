"""How fast, how small, how exact is the loss? drill's implementations, and those of others."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from cases import SIZES, Case, HeadInputs, cases, parser, random_inputs, training_step
from measure import Prepare, Report, Step, fastest, measure
from torch import Tensor

from drill.kernels.loss.checks import IGNORE_INDEX
from drill.kernels.loss.nll import nll

ALIGN = 64

Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(hidden, weight, targets, bias) -> the mean over targets that are not ignored"""


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, ignore_index=IGNORE_INDEX)


def torch_chunked(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, **options: Any
) -> Tensor:
    given = {"linear_bias": bias, "ignore_index": IGNORE_INDEX}
    if options:
        given["options"] = torch.nn.LinearCrossEntropyOptions(**options)
    return F.linear_cross_entropy(hidden, weight, targets, **given)


def liger(*inputs: Tensor, **options: Any) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(*inputs, ignore_index=IGNORE_INDEX, **options)


def cut(hidden: Tensor, weight: Tensor, targets: Tensor, _: None, **options: Any) -> Tensor:
    """Its kernels take half-precision hidden states and no bias."""
    from cut_cross_entropy import linear_cross_entropy

    if torch.is_autocast_enabled(hidden.device.type):
        hidden, weight = (x.to(torch.bfloat16) for x in (hidden, weight))
    return linear_cross_entropy(hidden, weight, targets, ignore_index=IGNORE_INDEX, **options)


def losses(case: Case, args: argparse.Namespace) -> dict[str, Loss]:
    """Every implementation by name; libraries are imported when they are called."""
    ours = partial(nll, ignore_index=IGNORE_INDEX)
    impls = ("reference", "chunked", "triton", "auto")
    found: dict[str, Loss] = {f"drill {impl}": partial(ours, impl=impl) for impl in impls}
    found["drill auto, check=False"] = partial(ours, check=False)
    bounded = "triton" if case.device.type == "cuda" else "chunked"
    for budget in args.memory:
        name = f"drill {bounded}, {budget} MiB"
        found[name] = partial(ours, impl=bounded, memory=budget * 2**20)
    found["F.cross_entropy(F.linear())"] = plain
    if not args.quick:
        torch.compiler.reset()
        found["the same, torch.compile"] = torch.compile(plain, dynamic=False)
    found["F.linear_cross_entropy"] = torch_chunked
    for policy in ("auto", "accurate"):
        name = f"F.linear_cross_entropy, {policy} chunks"
        found[name] = partial(torch_chunked, acc_policy=policy)
    found["liger-kernel"] = liger
    if case.dtype == "bfloat16":  # else its sums are float32 anyway
        found["liger-kernel, float32 sums"] = partial(liger, accum_dtype=torch.float32)
    found["cut-cross-entropy cce"] = cut
    found["cut-cross-entropy cce, filter_eps=None"] = partial(cut, filter_eps=None)
    for impl in ("cce_kahan_full_c", "cce_exact"):
        found[f"cut-cross-entropy {impl}"] = partial(cut, impl=impl)
    return found


def variants(case: Case, inputs: HeadInputs, args: argparse.Namespace) -> dict[str, Prepare]:
    hidden, weight, bias, targets = inputs

    def prepare(name: str, loss: Loss) -> Step:
        if case.device.type == "cpu" and name.startswith(("liger", "cut")):
            raise RuntimeError("needs a CUDA device")
        used = None if args.no_bias or name.startswith("cut") else bias
        given = [hidden, weight] if used is None else [hidden, weight, used]
        return training_step(lambda: loss(hidden, weight, targets, used), given, case)

    return {"GEMM floor": lambda: products(case, inputs)} | {
        name: partial(prepare, name, loss) for name, loss in losses(case, args).items()
    }


def products(case: Case, inputs: HeadInputs) -> Step:
    """The three matrix products no exact implementation can do without, and nothing else.

    The labels as they are or padded to a multiple of ``ALIGN``, whichever is faster: cuBLAS takes
    a slow path for a ragged number of labels, which an implementation need not take.
    """
    hidden, weight = (x.detach().to(case.matmul_dtype) for x in (inputs.hidden, inputs.weight))

    def bare(weight: Tensor) -> Step:
        def step() -> Sequence[Tensor]:
            logits = hidden @ weight.T
            return logits, logits @ weight, logits.T @ hidden

        return step

    missing = -len(weight) % ALIGN
    if not missing:
        return bare(weight)
    return fastest([bare(weight), bare(F.pad(weight, (0, 0, 0, missing)))], case.device)


class Truth:
    """Gradients of the same inputs in float64, or in float32 where that does not fit."""

    def __init__(self, case: Case, inputs: HeadInputs) -> None:
        tokens, labels, width = case.size
        needed = 8 * (4 * tokens * labels + 4 * labels * width)
        fits = case.device.type == "cpu" or needed < torch.cuda.mem_get_info()[0] // 2
        self.dtype = torch.float64 if fits else torch.float32
        self.inputs = inputs
        self.known: dict[int, tuple[Tensor, ...]] = {}  # by the number of gradients

    def errors(self, found: Sequence[Tensor]) -> dict[str, Any]:
        """|found - truth| / |truth| of d hidden and d weight; two gradients mean no bias."""
        if found[0].shape != self.inputs.hidden.shape:  # the bare products
            return {}
        if len(found) not in self.known:
            self.known[len(found)] = self._gradients(with_bias=len(found) == 3)
        pairs = zip(found[:2], self.known[len(found)], strict=True)
        hidden, weight = (((x.to(self.dtype) - y).norm() / y.norm()).item() for x, y in pairs)
        return {"hidden_error": hidden, "weight_error": weight, "bias": len(found) == 3}

    def _gradients(self, with_bias: bool) -> tuple[Tensor, ...]:
        mode, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        hidden, weight, bias = (x.detach().to(self.dtype).requires_grad_() for x in self.inputs[:3])
        loss = plain(hidden, weight, self.inputs.targets, bias if with_bias else None)
        gradients = torch.autograd.grad(loss, [hidden, weight])
        torch.backends.cuda.matmul.allow_tf32 = mode
        return gradients


def main() -> None:
    options = parser(__doc__, list(SIZES))
    options.add_argument("--sharp", action="store_true", help="peaked softmax, as when trained")
    options.add_argument("--no-bias", action="store_true", help="heads without a bias")
    options.add_argument("--memory", type=int, nargs="+", default=[], metavar="MiB")
    args = options.parse_args()
    report = Report("loss", args)
    notes = []
    for case in cases(args, list(SIZES)):
        inputs = random_inputs(case, args.sharp)
        truth = Truth(case, inputs)
        results = measure(
            variants(case, inputs, args),
            args,
            inspect=truth.errors,
            no_graph=("liger", "cut", "F.linear_cross_entropy"),
        )
        report.add(case, results, sharp=args.sharp)
        notes.append(f"errors: relative, against {truth.dtype} from the same inputs")
    if not args.no_bias:
        notes.append("cut-cross-entropy takes no bias; timed and compared without one")
    report.finish(*notes)


if __name__ == "__main__":
    main()
