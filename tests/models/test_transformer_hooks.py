"""Modules of a Transformer that are more than their weights: adapters, hooks, parametrizations."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.modules import module as torch_module

from drill.models import Transformer
from tests.helpers.devices import every_impl, interpreted
from tests.models import small_transformers
from tests.models.small_transformers import (
    B,
    S,
    T,
    both_norms,
    d,
    encoded,
    ids,
    ragged,
    repeated,
    trained,
)

make = partial(small_transformers.make, layers=1)


class Adapted(nn.Linear):
    """W x + b + A x: as an adapter, with a parameter that only its ``forward`` knows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.extra = nn.Parameter(torch.full_like(self.weight, 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + nn.functional.linear(x, self.extra)


class ScaledNorm(nn.LayerNorm):
    """A norm with a parameter that only its ``forward`` knows."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__(norm.normalized_shape)
        self.extra = nn.Parameter(torch.full_like(self.weight, 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.extra


def adapted(model: Transformer) -> dict[str, nn.Module]:
    """All maps and norms of a model, put into adapters."""
    found = {}
    for name, module in list(model.named_modules()):
        kind = {nn.Linear: Adapted, nn.LayerNorm: ScaledNorm}.get(type(module))
        if kind is not None:
            adapter = kind(module).to(module.weight)
            adapter.load_state_dict(module.state_dict(), strict=False)
            model.set_submodule(name, adapter)
            found[name] = adapter
    return found


@both_norms
@every_impl
def test_adapters_are_called_and_trained(impl, device, norm):
    models = []
    for chosen in (impl, "reference"):
        trained(chosen, norm, device, change=lambda m: models.append(adapted(m)), layers=1)
    assert len(models[0]) == (4 + 2) + (7 + 3) + (2 if norm == "pre" else 0)
    ours, theirs = ({name: x.extra.grad for name, x in adapters.items()} for adapters in models)
    assert all(grad.any() for grad in ours.values())
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "training", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["training", "evaluation"]
)
@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@every_impl
def test_hooks_are_called(impl, device, norm, training):
    """One at a time, so that kernels stand on either side of what is called."""
    model = make(norm, impl=impl).to(device, torch.float32).train(training)
    source, target = ragged(S)[:2].to(device), ids(2, T).to(device)  # one tile of the kernels
    plain = model(source, target).detach()
    called = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            hook = module.register_forward_hook(lambda *_, name=name: called.append(name))
            with torch.set_grad_enabled(training):
                hidden = model(source, target)
            hook.remove()
            assert called == [name]
            called.clear()
            torch.testing.assert_close(hidden.detach(), plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "register",
    [torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook],
)
@every_impl
def test_hooks_of_all_modules_are_called(impl, device, register):
    model = make(impl=impl).to(device, torch.float32)
    maps = [m for m in model.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    called = []
    hook = register(lambda module, *_: called.append(module))
    try:
        model(ragged(S).to(device), ids(B, T).to(device))
    finally:
        hook.remove()
    assert all(called.count(module) == 1 for module in maps)


every_part = pytest.mark.parametrize(
    "of",
    [
        "",
        "attention",
        "around_attention",
        pytest.param("source_attention", marks=pytest.mark.slow),
        pytest.param("feedforward", marks=pytest.mark.slow),
        pytest.param("around_feedforward", marks=pytest.mark.slow),
    ],
)


def scaled(module: nn.Module, factor: float) -> None:
    for each in module.modules():
        if isinstance(each, nn.Linear | nn.LayerNorm):
            each.weight = nn.Parameter(factor * each.weight.detach())


def parts(model: Transformer, of: str) -> list[nn.Module]:
    """That part of every block that has it; all of the block by no name."""
    blocks = model.decoder if of == "source_attention" else (*model.encoder, *model.decoder)
    return [block.get_submodule(of) for block in blocks]


def doubled_in_calls(model: Transformer, of: str) -> None:
    """As FSDP does, hooks that give a part other weights when it is called, and take them back."""
    for part in parts(model, of):
        part.register_forward_pre_hook(lambda module, _: scaled(module, 2.0))
        part.register_forward_hook(lambda module, *_: scaled(module, 0.5))


@every_part
@both_norms
@every_impl
def test_a_hook_may_set_the_weights_of_what_is_called(impl, device, norm, of):
    def doubled(model: Transformer) -> None:
        for part in parts(model, of):
            scaled(part, 2.0)

    in_hook = partial(doubled_in_calls, of=of)
    _, found = encoded(impl, norm, device, change=in_hook, layers=1)
    _, expected = encoded("reference", norm, device, change=doubled, layers=1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("room", [None, T], ids=["growing", "fixed"])
@every_part
@torch.no_grad()
def test_steps_are_the_whole_decoded_whatever_hooks_set(of, room):
    model, K = make().eval(), 2
    doubled_in_calls(model, of)
    memory, target = model.encode(ragged(S)), ids(B * K, T)
    whole = model.decode(target, repeated(memory, K)).view(B, K, T, d)
    cache = model.start(memory, hypotheses=K, room=room)
    before = [model.step(target[:, t], cache).view(B, K, d) for t in range(2)]
    torch.testing.assert_close(torch.stack(before, 2), whole[:, :, :2], rtol=0, atol=1e-11)
    left = torch.tensor([2, 0])
    cache.select(left)
    target = target.view(B, K, T)[left].flatten(0, 1)
    after = [model.step(target[:, t], cache).view(2, K, d) for t in range(2, T)]
    torch.testing.assert_close(torch.stack(after, 2), whole[left, :, 2:], rtol=0, atol=1e-11)


@pytest.fixture
def alone(tmp_path):
    """A group of this process alone."""
    where = f"file://{tmp_path / 'group'}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")  # nobody writes to it
@pytest.mark.parametrize("impl", ["reference", pytest.param("triton", marks=interpreted)])
@every_part
def test_blocks_and_parts_of_them_may_be_sharded(alone, impl, of):
    found, source, target = [], ragged(S), ids(B, T)
    for sharded in (True, False):
        torch.manual_seed(3)
        model = make(impl=impl).float()
        for part in parts(model, of) if sharded else ():
            fully_shard(part, mesh=alone, reshard_after_forward=True)
        hidden = model(source, target)
        hidden.square().sum().backward()
        gradients = [
            getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()
        ]
        with torch.no_grad():
            cache = model.start(model.encode(source))
            steps = torch.stack([model.step(target[:, t], cache) for t in range(T)], 1)
        torch.testing.assert_close(steps, hidden.detach(), rtol=1e-4, atol=1e-5)
        found.append([hidden.detach(), *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", ["around_attention.norm", "attention.output", "feedforward.inner"])
@every_impl
def test_kernels_next_to_adapters_have_the_dtypes_of_autocast(impl, device, of, norm):
    """A norm called after a map that was not, and a map called before a norm that was not."""

    def hooked(model: Transformer) -> None:
        for part in parts(model, of):
            part.register_forward_hook(lambda *_: None)

    ours, theirs = (
        trained(each, norm, device, True, hooked, layers=1)[0] for each in (impl, "reference")
    )
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).norm() <= 0.03 * theirs.norm()
