"""What does a trained layer cost at inference? Logits of the folded layer against nn.Linear."""

from contextlib import ExitStack
from dataclasses import replace

import torch
from cases import Case, cases, parser
from measure import Prepare, Report, Step, measure
from torch import nn

from drill.layers import DeepResidual

CACHED = "deep-residual 4, cached_labels"
NAMES = ("ptb", "wt2", "llm")
TOKENS = (1, 64)


def variants(case: Case, stack: ExitStack) -> dict[str, Prepare]:
    tokens, labels, width = case.size
    factory = {"device": case.device, "dtype": case.param_dtype}
    hidden = torch.randn(tokens, width, **factory)
    embedding = nn.Embedding(labels, width, **factory)

    def layer() -> DeepResidual:
        with torch.device(case.device):
            return DeepResidual(embedding, depth=4).to(case.param_dtype).eval()

    def run(logits: nn.Module) -> Step:
        def step() -> list[torch.Tensor]:
            with torch.no_grad(), case.autocast():
                return [logits(hidden)]

        return step

    def cached() -> Step:
        own = layer()
        stack.enter_context(own.cached_labels())
        return run(own.logits)

    return {
        "nn.Linear": lambda: run(nn.Linear(width, labels, **factory)),
        "deep-residual 4, folded": lambda: run(layer().fold()),
        CACHED: cached,
        "deep-residual 4, as trained": lambda: run(layer().logits),
    }


def main() -> None:
    args = parser(__doc__, NAMES).parse_args()
    report = Report("inference", args)
    for named in cases(args, NAMES, on_cpu=1 if args.quick else 2):
        for tokens in TOKENS:
            case = replace(named, size=named.size._replace(tokens=tokens))
            with ExitStack() as stack:
                report.add(case, measure(variants(case, stack), args, no_graph=(CACHED,)))
    report.finish("folded is an nn.Linear of the same size: what differs from 1.00 is noise")


if __name__ == "__main__":
    main()
