"""What does a trained layer cost at inference? Logits of the folded layer against nn.Linear."""

from contextlib import ExitStack

import torch
from setting import Setting, parser, settings
from table import Report, mib, ratio
from timing import Prepare, Step, measure
from torch import nn

from drill.layers import DeepResidual

BASE = "nn.Linear"
CACHED = "deep-residual 4, cached_labels"
NAMES = ("ptb", "wt2", "llm")
TOKENS = (1, 64)


def contestants(setting: Setting, stack: ExitStack) -> dict[str, Prepare]:
    tokens, labels, width = setting.size
    place = {"device": setting.device, "dtype": setting.parameters}
    hidden = torch.randn(tokens, width, **place)
    embedding = nn.Embedding(labels, width, **place)

    def layer() -> DeepResidual:
        with torch.device(setting.device):
            return DeepResidual(embedding, depth=4).to(setting.parameters).eval()

    def run(logits: nn.Module) -> Step:
        def step() -> list[torch.Tensor]:
            with torch.no_grad(), setting.autocast():
                return [logits(hidden)]

        return step

    def cached() -> Step:
        held = layer()
        stack.enter_context(held.cached_labels())
        return run(held.logits)

    return {
        BASE: lambda: run(nn.Linear(width, labels, **place)),
        "deep-residual 4, folded": lambda: run(layer().fold()),
        CACHED: cached,
        "deep-residual 4, as trained": lambda: run(layer().logits),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", choices=NAMES, help="default: all; on a CPU ptb, wt2")
    args = options.parse_args()
    report = Report("inference", args.device, args.json)
    for named in settings(args, NAMES, on_cpu=1 if args.quick else 2):
        for tokens in TOKENS:
            setting = Setting(
                named.name, named.size._replace(tokens=tokens), named.dtype, named.device
            )
            with ExitStack() as stack:
                results = measure(
                    contestants(setting, stack),
                    args.device,
                    seconds=0 if args.quick else args.seconds,
                    waiting=(CACHED,),
                )
            columns = {
                "x nn.Linear": ratio(results[BASE], digits=3),
                "peak MiB": lambda result: mib(result.peak),
            }
            report.add(setting, results, columns)
    report.note("folded is an nn.Linear of the same size: what differs from 1.000 is noise")
    report.finish()


if __name__ == "__main__":
    main()
