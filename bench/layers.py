"""What does each output layer cost in training? nll forward and backward, against weight tying."""

import math
from collections.abc import Callable
from functools import partial

import torch
from cases import SIZES, Case, cases, parser, random_inputs, training_step
from measure import Prepare, Report, Step, measure
from torch import nn

import drill


def deep(embedding: nn.Embedding, depth: int = 4) -> drill.DeepResidual:
    """The paper's language-model setting."""
    return drill.DeepResidual(embedding, depth=depth, dropout=0.6, locked=True, dropout_at="input")


tied = drill.TiedSoftmax
BUILDERS: dict[str, Callable[[nn.Embedding], drill.OutputLayer]] = {
    "tied": tied,
    "full": drill.FullSoftmax,
    "bilinear": drill.Bilinear,
    "dual": drill.DualNonlinear,
    "deep-residual 1": lambda E: deep(E, depth=1),
    "deep-residual 4": deep,
    "mixture 15 x tied": lambda E: drill.MixtureOfSoftmaxes(tied(E), 15),
    "mixture 15 x deep-residual 4": lambda E: drill.MixtureOfSoftmaxes(deep(E), 15),
    "sampled 1024 x tied": lambda E: drill.SampledSoftmax(tied(E), 1024),
    "sampled 1024 x deep-residual 4": lambda E: drill.SampledSoftmax(deep(E), 1024),
    "adaptive V/10 V/2 x tied": lambda E: drill.AdaptiveSoftmax(
        tied(E), [E.num_embeddings // 10, E.num_embeddings // 2]
    ),
    "sigsoftmax x tied": lambda E: drill.SigSoftmax(tied(E)),
    "plif x tied": lambda E: drill.PiecewiseLinearSoftmax(tied(E)),
    "softcap x tied": lambda E: drill.SoftcappedSoftmax(tied(E)),
    "mixtape 4 x tied": lambda E: drill.Mixtape(tied(E)),
    "mixtape 4, V/10 gates, x tied": lambda E: drill.Mixtape(tied(E), gates=E.num_embeddings // 10),
    "doc 15 x tied": lambda E: drill.DirectOutputConnection(tied(E)),
}
"""All over one embedding; names start as in ``LAYERS``."""


def variants(case: Case) -> dict[str, Prepare]:
    _, labels, width = case.size
    inputs = random_inputs(case)
    hidden, targets = inputs.hidden, inputs.targets
    embedding = nn.Embedding(labels, width, device=case.device, dtype=case.param_dtype)
    nn.init.normal_(embedding.weight, std=1 / math.sqrt(width))

    def prepare(build: Callable[[nn.Embedding], drill.OutputLayer]) -> Step:
        with torch.device(case.device):
            layer = build(embedding).to(case.param_dtype).train()
        given = [hidden, *layer.parameters()]
        return training_step(lambda: layer.nll(hidden, targets), given, case)

    return {name: partial(prepare, build) for name, build in BUILDERS.items()}


def main() -> None:
    options = parser(__doc__, list(SIZES))
    options.add_argument("--layer", nargs="+", choices=BUILDERS, help="default: all")
    args = options.parse_args()
    report = Report("layers", args)
    for case in cases(args, list(SIZES)):
        found = variants(case)
        report.add(case, measure({name: found[name] for name in args.layer or found}, args))
    report.finish("MiB beyond gradients: peak beyond parameters, inputs and returned gradients")


if __name__ == "__main__":
    main()
