"""Labels encoded before the hidden states: the same labels, the same gradients, never stale."""

import pytest
import torch
from torch import nn

from drill.kernels.beside import stream_beside, two_streams
from drill.layers import (
    AdaptiveSoftmax,
    Bilinear,
    DeepResidual,
    DualNonlinear,
    FullSoftmax,
    MixtureOfSoftmaxes,
    TiedSoftmax,
)
from drill.layers.ahead import AheadLabels
from drill.layers.held import StaleLabels

CPU = torch.device("cpu")
LAYERS = [FullSoftmax, TiedSoftmax, Bilinear, DualNonlinear, DeepResidual]


def made(kind, device="cpu"):
    torch.manual_seed(0)
    return kind(nn.Embedding(11, 6)).to(device)


def gradients(layer, hidden, targets):
    layer.zero_grad()
    layer.nll(hidden, targets).backward()
    return [None if p.grad is None else p.grad.clone() for p in layer.parameters()]


@pytest.mark.parametrize("kind", LAYERS)
def test_labels_ahead_are_the_labels_with_their_gradients(kind):
    layer = made(kind)
    hidden, targets = torch.randn(5, 6), torch.randint(11, (5,))
    wanted = gradients(layer, hidden, targets)
    ahead = AheadLabels(layer, CPU)
    with layer._hold(ahead):
        ahead.encode(layer.labels)
        for a, b in zip(gradients(layer, hidden, targets), wanted, strict=True):
            assert torch.equal(a, b)


def test_a_changed_parameter_is_noticed():
    layer = made(DeepResidual)
    ahead = AheadLabels(layer, CPU)
    ahead.encode(layer.labels)
    ahead.read()
    with torch.no_grad():
        layer.maps[0].linear.weight.mul_(2)
    with pytest.raises(StaleLabels, match=r"maps.0.linear.weight changed inside labels_ahead\(\)"):
        ahead.read()


@pytest.mark.parametrize("kind", LAYERS)
def test_on_a_cpu_labels_are_encoded_when_they_are_read(kind):
    layer = made(kind)
    with layer.labels_ahead():
        assert not layer.holds_labels


def test_a_second_stream_is_of_gpus_and_of_recorded_steps():
    assert stream_beside(CPU) is None
    with two_streams():
        assert stream_beside(CPU) is None


@pytest.mark.gpu
def test_a_second_stream_is_always_the_same():
    device = torch.device("cuda", 0)
    assert stream_beside(device) is None
    with two_streams():
        beside = stream_beside(device)
        assert beside is not None
        assert beside != torch.cuda.current_stream()
        assert stream_beside(device) is beside
        with torch.cuda.stream(torch.cuda.Stream()):
            assert stream_beside(device) is not beside


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_on_a_gpu_labels_are_there_before_the_hidden_states(kind, streams):
    layer = made(kind, "cuda")
    hidden, targets = torch.randn(5, 6, device="cuda"), torch.randint(11, (5,), device="cuda")
    wanted = gradients(layer, hidden, targets)
    mixture = MixtureOfSoftmaxes(layer, 2).cuda()
    with two_streams() if streams == 2 else torch.enable_grad():
        with layer.labels_ahead():
            assert layer.holds_labels
            found = gradients(layer, hidden, targets)
        with mixture.labels_ahead():
            assert layer.holds_labels
    with AdaptiveSoftmax(layer, [5]).labels_ahead():  # encodes the rows it wants
        assert not layer.holds_labels
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_held_labels_are_not_encoded_again():
    layer = made(DeepResidual, "cuda")
    with layer.shared_labels():
        held = layer._held
        with layer.labels_ahead():
            assert layer._held is held
