"""CUDA graphs: gradients by replays are those of backward(); work that cannot be captured."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from drill.errors import CaptureError
from drill.training.cuda_graphs import CapturedGradients, GraphCapture
from tests.helpers.devices import cpu_and_cuda
from tests.helpers.translators import small_translator

pytestmark = pytest.mark.usefixtures("fixed_seed")


def make(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 11)).to(
        device
    )


def batches(device: str) -> list[tuple[Tensor, Tensor]]:
    """Two shapes, each five times."""
    return [
        tuple(torch.randint(11, (2, 4 + 3 * (i % 2)), device=device) for _ in range(2))
        for i in range(10)
    ]


def loss_of(model: nn.Module):
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return loss


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulated", [1, 3])
@cpu_and_cuda
def test_training_is_the_same(device, accumulated, set_to_none):
    model = make(device)
    other = make(device)
    other.load_state_dict(model.state_dict())
    plain, captured = loss_of(model), CapturedGradients(other, loss_of(other))
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, other)]
    for i, batch in enumerate(batches(device)):
        value = plain(*batch)
        value.backward()
        replayed = captured(*batch)
        assert not replayed.requires_grad
        torch.testing.assert_close(replayed, value.detach())
        if (i + 1) % accumulated == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
    torch.testing.assert_close([*model.parameters()], [*other.parameters()])


@pytest.mark.parametrize("layer", ["tied", "deep-residual"])
@cpu_and_cuda
def test_a_replayed_step_of_a_translator_has_the_bits_of_a_launched_one(device, layer):
    """Attention by plain PyTorch, for its fused kernels add gradients in any order."""
    model = small_translator(layer).to(device)
    source, target = (torch.randint(3, 262, (4, length), device=device) for length in (8, 9))

    def loss(*batch: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return model.loss(*batch, check=False)

    def launched(*batch: Tensor) -> Tensor:
        value = loss(*batch)
        value.backward()
        return value.detach()

    def step(gradients) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(5)  # both drop the same
        value = gradients(source, target[:, :-1], target[:, 1:])
        return [value, *(each.grad.clone() for each in model.parameters())]

    captured = CapturedGradients(model, loss)
    with sdpa_kernel(SDPBackend.MATH):
        expected = step(launched)
        for _ in range(4):  # gradients find their places, a shape comes once, a capture, a replay
            found = step(captured)
    assert len(captured.cache.replays) == 1
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@cpu_and_cuda
def test_replays_draw_new_masks_and_losses_outlive_the_next(device):
    model = nn.Dropout(0.5).to(device)
    weight = nn.Parameter(torch.ones(64, device=device))
    model.register_parameter("weight", weight)
    captured = CapturedGradients(model, lambda x: (model(x) * weight).sum())
    values = [captured(torch.arange(64.0, device=device)) for _ in range(6)]
    assert len({value.item() for value in values}) > 3


@cpu_and_cuda
def test_gradients_stay_at_one_address_and_frozen_parameters_have_none(device):
    model = make(device)
    model[1].weight.requires_grad_(False)
    captured = CapturedGradients(model, loss_of(model))
    addresses = set()
    for batch in batches(device):
        captured(*batch)
        addresses.add(model[1].bias.grad.data_ptr())
        model.zero_grad()
    assert len(addresses) == 1
    assert model[1].weight.grad is None


@cpu_and_cuda
def test_a_parameter_that_a_batch_does_not_reach_has_no_gradient_of_the_one_before(device):
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).to(device)

    def loss(x: Tensor) -> Tensor:
        x = model[0](x)
        return (model[1](x) if len(x) == 2 else x).square().sum()

    captured = CapturedGradients(model, loss)
    for _ in range(4):
        for rows, reached in ((2, True), (5, False)):
            captured(torch.ones(rows, 3, device=device))
            assert model[0].weight.grad.any()
            assert bool(model[1].weight.grad.any()) == reached
            model.zero_grad()


@cpu_and_cuda
def test_a_gradient_of_others_is_added_to(device):
    model = make(device)
    captured = CapturedGradients(model, loss_of(model))
    first, second, third = batches(device)[:5:2]  # of one shape
    captured(*first)
    captured(*second)
    model.zero_grad()
    loss_of(model)(*third).backward()
    once = [each.grad.clone() for each in model.parameters()]
    captured(*third)
    for parameter, grad in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


@cpu_and_cuda
def test_shapes_beyond_the_most_run_as_they_are_and_the_log_says_so_once(
    device, monkeypatch, caplog
):
    monkeypatch.setattr("drill.training.cuda_graphs.MAX_GRAPHS", 1)
    model = make(device)
    captured = CapturedGradients(model, loss_of(model))
    for i, batch in enumerate(batches(device)):
        torch.testing.assert_close(captured(*batch), loss_of(model)(*batch).detach())
        assert len(caplog.records) == (i >= 3)  # the fourth is the second of the second shape
    assert len(captured.cache.replays) == 1
    said = caplog.records[0].getMessage()
    assert said.startswith("1 shapes are replayed as CUDA graphs, which is the limit")


@cpu_and_cuda
@pytest.mark.parametrize("change", ["mode", "address", "frozen", "autocast"])
def test_graphs_are_captured_again_after_a_change(device, change):
    model = make(device)
    model.insert(3, nn.Dropout(1.0))  # train mode: only the last bias counts
    captured = CapturedGradients(model, loss_of(model))
    batch = batches(device)[0]

    def gradients(half=False) -> list[Tensor | None]:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            value = captured(*batch)
            truth = loss_of(model)(*batch).detach()
        torch.testing.assert_close(value, truth)
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    for _ in range(3):
        gradients()
    assert len(captured.cache.replays) == 1
    if change == "mode":
        model.eval()
    elif change == "address":
        model[1].weight.data = model[1].weight.data + 1.0
    elif change == "frozen":
        model[1].weight.requires_grad_(False)
    for _ in range(3):
        found = gradients(half=change == "autocast")
    assert len(captured.cache.replays) == (2 if change == "autocast" else 1)  # old ones go
    assert (found[1] is None) == (change == "frozen")
    if change == "mode":
        assert found[0].any()


# -- capturing ------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """Of a device whose capture is broken by an error inside it."""
    broken = Mock()
    broken.capture_end.side_effect = RuntimeError("the capture was invalidated")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: broken)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Mock(torch.cuda.Stream))
    made = GraphCapture(torch.device("cpu"), instead="set training.cuda_graphs=false")
    made._stream = object()
    return made


def test_work_that_waits_is_refused_in_one_sentence(graphs):
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile")
    with pytest.raises(CaptureError) as caught:
        graphs.capture(Mock(side_effect=error))
    assert str(caught.value) == (
        "this work cannot be captured as a CUDA graph (CUDA error: operation not permitted when "
        "stream is capturing); set training.cuda_graphs=false"
    )
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ValueError("wrong"), KeyError()])
def test_what_is_no_fault_of_capturing_is_handed_on(graphs, error):
    with pytest.raises(type(error)) as caught:
        graphs.capture(Mock(side_effect=error))
    assert caught.value is error


@pytest.mark.gpu
def test_after_a_refusal_the_device_goes_on():
    device = torch.device("cuda")
    graphs = GraphCapture(device, instead="do without")
    x = torch.ones(3, device=device)
    graphs.warm_up(lambda: x.add_(1))
    with pytest.raises(CaptureError, match="do without"):
        graphs.capture(lambda: x.add_(x.sum().item()))
    replay = graphs.capture(lambda: x.add_(1))
    replay()
    assert x.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.gpu
@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_right_after_a_capture_has_random_numbers_of_its_own(monkeypatch, fails):
    """A capture sets them back on its own stream, which may be late: here by some 50 ms."""
    graphs = GraphCapture(torch.device("cuda", 0), instead="do without")
    drawn = torch.empty(4, device="cuda")

    def work():
        drawn.copy_(torch.rand(4, device="cuda"))

    def late(device):
        waits(device)
        with torch.cuda.stream(graphs._stream):
            torch.cuda._sleep(100_000_000)

    torch.manual_seed(1)
    for _ in range(3):
        graphs.warm_up(work)
    wanted = drawn.tolist()
    torch.manual_seed(1)
    graphs.warm_up(work)
    replay = graphs.capture(work)
    replay()
    waits = torch.cuda.synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", late)
    if fails:
        with pytest.raises(CaptureError):
            graphs.capture(lambda: drawn.add_(drawn.sum().item()))
    else:
        replay = graphs.capture(work)
    replay()
    assert drawn.tolist() == wanted
