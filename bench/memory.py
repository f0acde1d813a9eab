"""Is memory bounded whatever N is? The loss over 262,144 labels for ever more tokens."""

import os

from cases import Case, Size, parser, random_inputs, training_step
from measure import Prepare, Report, Step, measure

from drill.kernels.loss.nll import nll

LABELS = 262_144
TOKENS = (1024, 4096, 16_384)
BUDGET = 256 * 2**20


def variants(case: Case, budget: int) -> dict[str, Prepare]:
    hidden, weight, bias, targets = random_inputs(case)

    def prepare(impl: str) -> Step:
        if impl == "reference" and case.device.type == "cpu":
            # logits, their log-softmax and their gradient; the system would kill, not raise
            needed = 3 * 4 * len(hidden) * len(weight)
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if needed > free // 2:
                raise MemoryError(f"needs {needed / 2**30:.1f} of {free / 2**30:.1f} GiB free")
        return training_step(
            lambda: nll(hidden, weight, targets, bias, impl=impl, memory=budget),
            [hidden, weight, bias],
            case,
        )

    return {impl: lambda impl=impl: prepare(impl) for impl in ("reference", "chunked", "triton")}


def main() -> None:
    args = parser(__doc__).parse_args()
    cuda = args.device.type == "cuda"
    report = Report("memory", args)
    for dtype in args.dtype or ["bfloat16" if cuda else "float32"]:
        for tokens in TOKENS:
            size = Size(tokens, LABELS, 2048 if cuda else 64)
            if args.quick:
                size = Size(tokens // 64, LABELS // 16, 16)
            case = Case("memory", size, dtype, args.device)
            budget = BUDGET // (256 if args.quick else 1)
            logits = size.tokens * size.labels * case.matmul_dtype.itemsize
            results = measure(variants(case, budget), args, rounds=(1, 1))
            report.add(case, results, budget_bytes=budget, logits_bytes=logits)
    report.finish("MiB beyond gradients: peak beyond inputs and the three returned gradients")


if __name__ == "__main__":
    main()
