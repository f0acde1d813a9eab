"""What does each output layer cost in training? nll forward and backward, against weight tying."""

import math
from collections.abc import Callable
from functools import partial
from typing import get_args

import torch
from measure import Prepare, Report, Step, measure
from setting import SIZES, Setting, head, parser, settings, training_step
from torch import nn

from drill.kernels.loss.nll import Implementation
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    DirectOutputConnection,
    DualNonlinear,
    FullSoftmax,
    MatrixLayer,
    Mixtape,
    MixtureOfSoftmaxes,
    OutputLayer,
    PiecewiseLinearSoftmax,
    SampledSoftmax,
    SigSoftmax,
    SoftcappedSoftmax,
    TiedSoftmax,
)


def deep(embedding: nn.Embedding, depth: int = 4) -> DeepResidual:
    """The paper's language-model setting."""
    return DeepResidual(embedding, depth=depth, dropout=0.6, locked=True, dropout_at="input")


def adaptive(layer: MatrixLayer) -> AdaptiveSoftmax:
    labels = layer.vocabulary_size
    return AdaptiveSoftmax(layer, [labels // 10, labels // 2])


BUILDERS: dict[str, Callable[[nn.Embedding], OutputLayer]] = {
    "tied": TiedSoftmax,
    "full": FullSoftmax,
    "bilinear": Bilinear,
    "dual": DualNonlinear,
    "deep-residual 1": lambda embedding: deep(embedding, 1),
    "deep-residual 4": deep,
    "mixture 15 x tied": lambda embedding: MixtureOfSoftmaxes(TiedSoftmax(embedding), 15),
    "mixture 15 x deep-residual 4": lambda embedding: MixtureOfSoftmaxes(deep(embedding), 15),
    "sampled 1024 x tied": lambda embedding: SampledSoftmax(TiedSoftmax(embedding), 1024),
    "sampled 1024 x deep-residual 4": lambda embedding: SampledSoftmax(deep(embedding), 1024),
    "adaptive V/10 V/2 x tied": lambda embedding: adaptive(TiedSoftmax(embedding)),
    "sigsoftmax x tied": lambda embedding: SigSoftmax(TiedSoftmax(embedding)),
    "plif x tied": lambda embedding: PiecewiseLinearSoftmax(TiedSoftmax(embedding)),
    "softcap x tied": lambda embedding: SoftcappedSoftmax(TiedSoftmax(embedding)),
    "mixtape 4 x tied": lambda embedding: Mixtape(TiedSoftmax(embedding)),
    "mixtape 4, V/10 gates, x tied": lambda embedding: Mixtape(
        TiedSoftmax(embedding), gates=embedding.num_embeddings // 10
    ),
    "doc 15 x tied": lambda embedding: DirectOutputConnection(TiedSoftmax(embedding)),
}
"""All over one embedding; names start as in ``LAYERS``."""


def variants(setting: Setting, impl: str, check: bool) -> dict[str, Prepare]:
    _, labels, width = setting.size
    inputs = head(setting)
    hidden, targets = inputs.hidden, inputs.targets
    embedding = nn.Embedding(labels, width, device=setting.device, dtype=setting.parameters)
    nn.init.normal_(embedding.weight, std=1 / math.sqrt(width))

    def prepare(build: Callable[[nn.Embedding], OutputLayer]) -> Step:
        with torch.device(setting.device):
            layer = build(embedding).to(setting.parameters).train()
        return training_step(
            lambda: layer.nll(hidden, targets, impl=impl, check=check),
            [hidden, *layer.parameters()],
            setting,
        )

    return {name: partial(prepare, build) for name, build in BUILDERS.items()}


def main() -> None:
    options = parser(__doc__, list(SIZES))
    options.add_argument("--impl", default="auto", choices=get_args(Implementation))
    options.add_argument("--unchecked", action="store_true", help="pass check=False")
    options.add_argument("--layer", nargs="+", choices=BUILDERS, help="default: all")
    args = options.parse_args()
    report = Report("layers", args)
    for setting in settings(args, list(SIZES)):
        found = variants(setting, args.impl, not args.unchecked)
        results = measure({name: found[name] for name in args.layer or found}, args)
        report.add(setting, results, impl=args.impl)
    report.finish("MiB beyond gradients: peak beyond parameters, inputs and returned gradients")


if __name__ == "__main__":
    main()
