"""A step of SGD in two launches against the same step of torch's optimizers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from drill.kernels.optimizer import sgd_step as module
from drill.kernels.optimizer.sgd_step import Group, sgd_step, unsupported_reason
from drill.kernels.runtime import nvrtc
from drill.training.optim import Asgd, NtAsgd, Sgd
from drill.training.run.checkpoint import split_tensors

SIZES = [(3,), (1,), (70, 33), (4096,), (129, 65), (5, 1000)]


def parameters(device, sizes=SIZES):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size, device=device)) for size in sizes]


def trained(optimizer, device, fused, steps=6, scale=1.0, sizes=SIZES):
    params = parameters(device, sizes)
    optimizer.setup((f"layer.maps.{i}" if i % 2 else str(i), p) for i, p in enumerate(params))
    optimizer._fused = optimizer._fused and fused
    torch.manual_seed(1)
    for step in range(steps):
        for p in params:
            p.grad = scale * torch.randn(p.shape, device=device)
        optimizer.step(70 - step, 70, 0.0)
    assert all(p.grad is None for p in params)
    return params, optimizer


def close(found, truth):
    torch.testing.assert_close(list(found), list(truth), rtol=2e-6, atol=2e-7)


def stand_in(device="cuda:0", dtype=torch.float32, contiguous=True):
    """A tensor on a GPU, as far as it is looked at."""
    return SimpleNamespace(
        is_cuda=device != "cpu",
        device=torch.device(device),
        dtype=dtype,
        shape=(2, 3),
        is_contiguous=lambda: contiguous,
    )


@pytest.fixture
def compiles(monkeypatch):
    """As where NVRTC is installed."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(nvrtc, "unavailable_reason", lambda: None)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([], "there is no parameter"),
        ([stand_in(), stand_in("cpu")], "one is on cpu"),
        ([stand_in(), stand_in("cuda:1")], "parameters are on cuda:0 and cuda:1"),
        ([stand_in(), stand_in(dtype=torch.bfloat16)], "one is torch.bfloat16"),
        ([stand_in(contiguous=False)], "(2, 3) are not in order in memory"),
    ],
)
def test_what_it_cannot_change_is_said(tensors, reason, compiles, monkeypatch):
    monkeypatch.setattr(module, "_not_compiled", lambda device: None)
    assert reason in unsupported_reason(tensors)
    assert unsupported_reason([stand_in()] * 97) is None


def test_kernels_that_do_not_compile_are_no_step(compiles, monkeypatch):
    def compiled(source, name, *_):
        raise nvrtc.CompileError(f"{source.name}: does not load")

    monkeypatch.setattr(module, "load_kernel", compiled)
    module._not_compiled.cache_clear()
    assert unsupported_reason([stand_in()]) == "sgd_step.cu: does not load"
    module._not_compiled.cache_clear()


def test_without_nvrtc_the_optimizer_of_torch_steps(monkeypatch):
    monkeypatch.setattr(nvrtc, "unavailable_reason", lambda: "NVRTC is not found")
    assert unsupported_reason([stand_in()]) == "NVRTC is not found"
    optimizer = trained(Sgd(), "cpu", True)[1]
    assert not optimizer._fused
    assert optimizer.capture_blocker() == "parameters are not all on an NVIDIA GPU, one is on cpu"


@pytest.fixture
def launches(monkeypatch):
    """Every launch by its name, count of tensors and place in the partial sums; none is run."""
    made = []

    def compiled(source, name, defines, shared, device):
        def launch(blocks, threads, arguments):
            table, partial, *rest = arguments
            made.append((name, table.count, blocks, partial.storage_offset(), rest[:1]))

        return launch

    monkeypatch.setattr(module, "load_kernel", compiled)
    found = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    return made


def group(weights, gradients, averages=None):
    return Group(weights, gradients, averages, torch.zeros(2), 0.0)


def test_many_tensors_and_groups_have_one_norm(launches):
    params = [nn.Parameter(torch.ones(5)) for _ in range(103)]
    sgd_step([group(params[:100], params[:100]), group(params[100:], params[100:])], clip=1.0)
    assert launches == [
        ("squares", 96, 8, 0, []),
        ("squares", 4, 4, 8, []),
        ("squares", 3, 3, 12, []),
        ("update", 96, 8, 0, [15]),
        ("update", 4, 4, 0, [15]),
        ("update", 3, 3, 0, [15]),
    ]


@pytest.mark.usefixtures("launches")
def test_autograd_hears_of_the_change():
    weights, averages = parameters("cpu"), parameters("cpu")
    loss = weights[0].square().sum()
    before = [each._version for each in averages]
    sgd_step([group(weights, weights, averages)], clip=None)
    assert all(each._version > old for each, old in zip(averages, before, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("clip", [0.25, None])
@pytest.mark.parametrize("maps", [{}, {"map_lr_scale": 0.3}])
@pytest.mark.parametrize("kind", [Sgd, Asgd])
def test_it_is_the_optimizer_step(kind, maps, clip, scale):
    settings = {"lr": 0.5, "weight_decay": 1e-2, "max_grad_norm": clip, **maps}
    found, ours = trained(kind(**settings), "cuda", True, scale=scale)
    truth, theirs = trained(kind(**settings), "cuda", False, scale=scale)
    assert ours._fused
    close(found, truth)
    tensors, numbers = split_tensors(ours.state_dict())
    wanted, expected = split_tensors(theirs.state_dict())
    assert numbers == expected
    close([tensors[name] for name in wanted], wanted.values())


@pytest.mark.gpu
def test_it_averages_as_one_tensor_after_the_other_does():
    settings = {"lr": 0.5, "average_from": 0.0}
    found, ours = trained(Sgd(**settings), "cuda", True)
    truth, theirs = trained(Sgd(**settings), "cuda", False)
    assert ours._fused
    assert split_tensors(ours.state_dict())[1] == split_tensors(theirs.state_dict())[1]
    close(found, truth)
    close(ours.late_average.values, theirs.late_average.values)


@pytest.mark.gpu
def test_it_repeats_its_bits_and_hands_nan_on():
    one, other = (trained(Asgd(lr=0.5), "cuda", True)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    params = parameters("cuda")
    optimizer = Sgd(lr=0.5)
    optimizer.setup((str(i), p) for i, p in enumerate(params))
    for p in params:
        p.grad = torch.ones_like(p)
    params[2].grad[0, 0] = torch.nan
    optimizer.step(70, 70, 0.0)
    assert all(p.isnan().all() for p in params)  # the norm is not a number, so no step is


@pytest.mark.gpu
def test_a_parameter_left_out_goes_by_the_optimizer():
    settings = {"lr": 0.5, "weight_decay": 1e-2}
    results = []
    for fused in (True, False):
        optimizer = NtAsgd(**settings, patience=0)
        params = parameters("cuda")
        optimizer.setup((str(i), p) for i, p in enumerate(params))
        optimizer._fused = fused
        optimizer._average()
        torch.manual_seed(1)
        for step in range(5):
            for p in params[step == 2 :]:
                p.grad = torch.randn(p.shape, device="cuda")
            optimizer.step(70, 70, 0.0)
        results.append((params, split_tensors(optimizer.state_dict())[1]))
    (found, ours), (truth, theirs) = results
    assert ours == theirs
    close(found, truth)
