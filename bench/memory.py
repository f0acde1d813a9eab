"""Is memory bounded whatever N is? The loss over 262,144 labels for ever more tokens."""

from setting import (
    Setting,
    Size,
    head,
    parser,
    require_memory,
    training_step,
)
from table import Report, mib
from timing import Prepare, Step, measure

from drill.kernels.loss.nll import nll

LABELS = 262_144
TOKENS = (1024, 4096, 16_384)


def contestants(setting: Setting, budget: int) -> dict[str, Prepare]:
    hidden, weight, bias, targets = head(setting)

    def prepare(impl: str) -> Step:
        if impl == "reference":  # logits, their log-softmax and their gradient, in float32
            require_memory(3 * hidden.shape[0] * weight.shape[0] * 4, setting.device)
        return training_step(
            lambda: nll(hidden, weight, targets, bias, impl=impl, memory=budget),
            [hidden, weight, bias],
            setting,
        )

    return {impl: lambda impl=impl: prepare(impl) for impl in ("reference", "chunked", "triton")}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="N")
    options.add_argument("--width", type=int, help="d; default: 2048, on a CPU 64")
    options.add_argument("--memory", type=int, default=256, metavar="MiB", help="the budget")
    args = options.parse_args()
    cuda = args.device.type == "cuda"
    report = Report("memory", args.device, args.json)
    for dtype in args.dtype or (["bfloat16"] if cuda else ["float32"]):
        for tokens in args.tokens:
            size = Size(tokens, LABELS, args.width or (2048 if cuda else 64))
            if args.quick:
                size = Size(tokens // 64, LABELS // 16, 16)
            setting = Setting("memory", size, dtype, args.device)
            budget = args.memory * 2**20 // (256 if args.quick else 1)
            results = measure(contestants(setting, budget), args.device, seconds=0, rounds=(1, 1))
            logits = size.tokens * size.labels * setting.products.itemsize
            report.add(
                setting,
                results,
                {
                    "MiB beyond gradients": lambda result: mib(result.working_memory),
                    "budget": lambda _, budget=budget: mib(budget),
                    "logits": lambda _, logits=logits: mib(logits),
                },
                budget_bytes=budget,
                logits_bytes=logits,
            )
    report.note("MiB beyond gradients: peak beyond inputs and the three returned gradients")
    report.finish()


if __name__ == "__main__":
    main()
