"""The kernels that layers report, and the slower ones that they log."""

import pytest
import torch
from torch import nn

from drill.layers import (
    AdaptiveSoftmax,
    DeepResidual,
    MixtureOfSoftmaxes,
    SampledSoftmax,
    TiedSoftmax,
)
from tests.layers.table import every_case, make

LABELS, WIDTH = 100_000, 8
ON_A_CPU = "labels reference (the labels are on cpu)"


def deep(**options: object) -> DeepResidual:
    return DeepResidual(nn.Embedding(LABELS, WIDTH), **{"depth": 2, **options})


def tied() -> TiedSoftmax:
    return TiedSoftmax(nn.Embedding(LABELS, WIDTH))


@every_case
def test_every_layer_reports_its_kernels(name: str):
    lines = make(name).kernel_summary(30)
    assert all(line.endswith(")") for line in lines)
    assert len(lines) == len({line.split(" ")[0] for line in lines})  # one per part


IN_CHUNKS = "loss chunked (the logits would take 11 MiB)"


@pytest.mark.parametrize(
    ("layer", "lines"),
    [
        (tied, [IN_CHUNKS]),
        (deep, [ON_A_CPU, IN_CHUNKS]),
        (lambda: deep(depth=0), [IN_CHUNKS]),
        (lambda: MixtureOfSoftmaxes(deep(), 2), [ON_A_CPU, IN_CHUNKS.replace("11", "23")]),
        (lambda: SampledSoftmax(deep()), [ON_A_CPU]),
        (lambda: AdaptiveSoftmax(tied(), [2_000]), ["the head's loss reference (the logits"]),
        (lambda: deep(impl="reference"), ["labels reference (requested)", IN_CHUNKS]),
    ],
)
def test_loss_and_labels_have_reasons(layer, lines):
    found = layer().kernel_summary(30)
    assert all(map(str.startswith, found, lines))
    assert len(found) == len(lines)


def test_autocast_halves_the_logits():
    with torch.autocast("cpu", torch.bfloat16):
        assert tied().kernel_summary(30) == [IN_CHUNKS.replace("11", "6")]
