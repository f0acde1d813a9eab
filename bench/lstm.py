"""What do the LSTMs of AWD-LSTM cost, forward and backward, and how exact are they? Against cuDNN.

The paper's three layers with weight drop, without embedding and locked dropout: 400 to 1150 to 1150
to 400, 70 steps, batch 20 (ptb) and 80 (wt2). Parameters are float32, as in training.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise

import torch
from cases import Case, cases, parser, training_step
from measure import Prepare, Report, Step, measure
from torch import Tensor, nn

from drill.kernels.lstm.lstm import Implementation, lstm, lstm_stack
from drill.kernels.lstm.weights import Weights

BASE = "cudnn"
NAMES = ("ptb", "wt2")
STEPS, QUICK_STEPS = 70, 7
WIDER = 2.875  # the inner layers: 1150 / 400
WEIGHT_DROP = 0.5


def widths(case: Case) -> list[int]:
    inner = int(WIDER * case.size.width)
    return [case.size.width, inner, inner, case.size.width]


def variants(case: Case, steps: int) -> dict[str, Prepare]:
    batch = case.size.tokens // steps

    def prepare(impl: Implementation) -> Step:
        torch.manual_seed(0)
        with torch.device(case.device):
            layers = [nn.LSTM(*pair) for pair in pairwise(widths(case))]
            x = torch.randn(steps, batch, case.size.width, requires_grad=True)
            states = [(torch.zeros(1, batch, layer.hidden_size),) * 2 for layer in layers]

        def loss() -> Tensor:
            weights = [Weights(*layer.all_weights[0]) for layer in layers]
            hidden, _ = lstm_stack(x, states, weights, impl, drop=WEIGHT_DROP)
            return hidden.float().mean()

        given = [x, *(weight for layer in layers for weight in layer.parameters())]
        return training_step(loss, given, case)

    # The others multiply in bfloat16 whatever the case says.
    half = case.matmul_dtype == torch.bfloat16
    impls: tuple[Implementation, ...] = (BASE, "persistent", "graph") if half else (BASE,)
    return {impl: lambda impl=impl: prepare(impl) for impl in impls}


def errors(case: Case, steps: int, impl: Implementation) -> dict[str, float]:
    """The worst |found - truth| / |truth| of all layers: of a result, and of a gradient.

    The truth is in float64, of each layer by itself and without dropout. NaN where anything is NaN,
    which Python's own ``max`` would pass over.
    """
    torch.manual_seed(1)
    batch = case.size.tokens // steps
    outputs, gradients = [], []
    for width, hidden in pairwise(widths(case)):
        with torch.device(case.device):
            weights = [weight.detach() for weight in nn.LSTM(width, hidden).parameters()]
            state = [0.3 * torch.randn(1, batch, hidden) for _ in "hc"]
            wanted = [torch.randn(n, batch, hidden) for n in (steps, 1, 1)]
            problem = [torch.randn(steps, batch, width), *state, *weights, *wanted]
        truth = solve(BASE, problem, torch.float64, nullcontext())
        found = solve(impl, problem, torch.float32, case.autocast())
        pairs = zip(found, truth, strict=True)
        wrong = torch.stack([(a.double() - b).norm() / b.norm() for a, b in pairs])
        outputs.append(wrong[:3].max())
        gradients.append(wrong[3:].max())
    worst = {"output_error": outputs, "gradient_error": gradients}
    return {name: torch.stack(each).max().item() for name, each in worst.items()}


def solve(
    impl: Implementation,
    problem: list[Tensor],  # x, h, c, weights, and gradients of the results
    dtype: torch.dtype,
    autocast: AbstractContextManager[object],
) -> list[Tensor]:
    """Output, h and c of a layer, and the gradients of its input, its states and its weights."""
    x, h, c, *weights = given = [each.detach().to(dtype).requires_grad_() for each in problem[:-3]]
    with autocast:  # forward alone, as in training
        results = lstm(x, h, c, Weights(*weights), impl)
    wanted = [each.to(result.dtype) for each, result in zip(problem[-3:], results, strict=True)]
    found = torch.autograd.grad(results, given, wanted)
    return [each.detach() for each in (*results, *found)]


def main() -> None:
    options = parser(__doc__, NAMES)
    options.add_argument("--batch", nargs="+", type=int, default=[], help="instead of the sizes'")
    args = options.parse_args()
    steps = QUICK_STEPS if args.quick else STEPS
    report = Report("lstm", args)
    names = NAMES[:1] if args.batch else NAMES
    for named in cases(args, names, on_cuda=("tf32", "autocast")):
        torch.backends.cudnn.allow_tf32 = named.dtype == "tf32"
        for batch in args.batch or [named.size.tokens // steps]:
            case = replace(named, size=named.size._replace(tokens=batch * steps))
            if args.batch:
                case = replace(case, name=f"batch {batch}")
            results = measure(variants(case, steps), args)
            for impl, row in results.items():
                row |= {} if "error" in row else errors(case, steps, impl)
            report.add(case, results, batch=batch, steps=steps)
    report.finish(
        f"forward and backward of three layers, {steps} steps, weight drop included",
        "graph ms: all of it as one CUDA graph; impl graph alone replays its own steps",
        "errors: the worst of the layers, each by itself in float64, nothing dropped",
    )


if __name__ == "__main__":
    main()
