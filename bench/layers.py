"""What does each output layer cost in training? nll forward and backward, against weight tying."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measure import Prepare, Report, Step, measure
from setting import SIZES, Setting, parser, random_inputs, settings, training_step
from torch import nn

import drill


def deep(embedding: nn.Embedding, depth: int = 4) -> drill.DeepResidual:
    """The paper's language-model setting."""
    return drill.DeepResidual(embedding, depth=depth, dropout=0.6, locked=True, dropout_at="input")


def adaptive(layer: drill.MatrixLayer) -> drill.AdaptiveSoftmax:
    labels = layer.vocabulary_size
    return drill.AdaptiveSoftmax(layer, [labels // 10, labels // 2])


def mixtape_of_few_gates(layer: drill.MatrixLayer) -> drill.Mixtape:
    return drill.Mixtape(layer, gates=layer.vocabulary_size // 10)


def over(matrix: Callable[..., drill.MatrixLayer], wrapper: Callable[..., Any], *args: int) -> Any:
    return lambda embedding: wrapper(matrix(embedding), *args)


tied = drill.TiedSoftmax
BUILDERS: dict[str, Callable[[nn.Embedding], drill.OutputLayer]] = {
    "tied": tied,
    "full": drill.FullSoftmax,
    "bilinear": drill.Bilinear,
    "dual": drill.DualNonlinear,
    "deep-residual 1": partial(deep, depth=1),
    "deep-residual 4": deep,
    "mixture 15 x tied": over(tied, drill.MixtureOfSoftmaxes, 15),
    "mixture 15 x deep-residual 4": over(deep, drill.MixtureOfSoftmaxes, 15),
    "sampled 1024 x tied": over(tied, drill.SampledSoftmax, 1024),
    "sampled 1024 x deep-residual 4": over(deep, drill.SampledSoftmax, 1024),
    "adaptive V/10 V/2 x tied": over(tied, adaptive),
    "sigsoftmax x tied": over(tied, drill.SigSoftmax),
    "plif x tied": over(tied, drill.PiecewiseLinearSoftmax),
    "softcap x tied": over(tied, drill.SoftcappedSoftmax),
    "mixtape 4 x tied": over(tied, drill.Mixtape),
    "mixtape 4, V/10 gates, x tied": over(tied, mixtape_of_few_gates),
    "doc 15 x tied": over(tied, drill.DirectOutputConnection),
}
"""All over one embedding; names start as in ``LAYERS``."""


def variants(setting: Setting) -> dict[str, Prepare]:
    _, labels, width = setting.size
    inputs = random_inputs(setting)
    hidden, targets = inputs.hidden, inputs.targets
    embedding = nn.Embedding(labels, width, device=setting.device, dtype=setting.param_dtype)
    nn.init.normal_(embedding.weight, std=1 / math.sqrt(width))

    def prepare(build: Callable[[nn.Embedding], drill.OutputLayer]) -> Step:
        with torch.device(setting.device):
            layer = build(embedding).to(setting.param_dtype).train()
        given = [hidden, *layer.parameters()]
        return training_step(lambda: layer.nll(hidden, targets), given, setting)

    return {name: partial(prepare, build) for name, build in BUILDERS.items()}


def main() -> None:
    options = parser(__doc__, list(SIZES))
    options.add_argument("--layer", nargs="+", choices=BUILDERS, help="default: all")
    args = options.parse_args()
    report = Report("layers", args)
    for setting in settings(args, list(SIZES)):
        found = variants(setting)
        report.add(setting, measure({name: found[name] for name in args.layer or found}, args))
    report.finish("MiB beyond gradients: peak beyond parameters, inputs and returned gradients")


if __name__ == "__main__":
    main()
