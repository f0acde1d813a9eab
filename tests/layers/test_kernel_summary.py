"""What layers say of the way they train in, and what they log where it is a slower one."""

import logging

import pytest
import torch
from torch import nn

from drill.kernels.label_encoder import encode_labels
from drill.kernels.runtime.dispatch import Choice, log_once
from drill.layers import (
    AdaptiveSoftmax,
    DeepResidual,
    MixtureOfSoftmaxes,
    OutputLayer,
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
def test_every_layer_has_ways(name: str):
    ways = make(name).kernel_summary(30)
    assert all(way.endswith(")") for way in ways)
    assert len(ways) == len({way.split(" ")[0] for way in ways})  # a part is told of once


@pytest.mark.parametrize(
    ("layer", "ways"),
    [
        (tied, ["loss chunked (the logits would take 11 MiB)"]),
        (deep, [ON_A_CPU, "loss chunked (the logits would take 11 MiB)"]),
        (lambda: deep(depth=0), ["loss chunked (the logits would take 11 MiB)"]),
        (lambda: MixtureOfSoftmaxes(deep(), 2),
         [ON_A_CPU, "loss chunked (the logits would take 23 MiB)"]),
        (lambda: SampledSoftmax(deep()), [ON_A_CPU]),
        (lambda: AdaptiveSoftmax(tied(), [2_000]),
         ["the head's loss reference (the logits take only 0.2 MiB)"]),
        (lambda: deep(impl="reference"),
         ["labels reference (asked for)", "loss chunked (the logits would take 11 MiB)"]),
    ],
)  # fmt: skip
def test_loss_and_labels_are_told_with_their_reasons(layer, ways):
    made: OutputLayer = layer()
    assert made.kernel_summary(30) == ways


def test_autocast_halves_the_logits():
    with torch.autocast("cpu", torch.bfloat16):
        assert tied().kernel_summary(30) == ["loss chunked (the logits would take 6 MiB)"]


def test_a_map_that_has_to_be_called_is_told_once(monkeypatch, caplog):
    def choose(E, width, depth):
        return Choice("triton", "as on a GPU")

    log_once.cache_clear()
    monkeypatch.setattr(encode_labels, "choose_encoder", choose)
    layer = DeepResidual(nn.Embedding(5, 4), depth=2)
    assert layer.label_kernel_summary() == ["labels triton (as on a GPU)"]
    layer.maps[1].linear.register_forward_hook(lambda *_: None)
    reason = "map 1 has to be called: it has hooks"
    assert layer.label_kernel_summary() == [f"labels reference ({reason})"]
    with caplog.at_level(logging.INFO, logger="drill"):
        for _ in range(2):
            layer.labels()
    assert caplog.messages == [f"labels of DeepResidual: reference ({reason})"]
