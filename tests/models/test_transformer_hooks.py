"""Modules of a Transformer that are more than their weights: adapters, hooks, parametrizations."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drill.models import Transformer
from tests.helpers.devices import every_impl, interpreted
from tests.models import small_transformers
from tests.models.small_transformers import (
    B,
    S,
    T,
    both_norms,
    ids,
    ragged,
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


@pytest.mark.parametrize("of", ["encoder.0", "decoder.0.attention.output", "decoder_norm"])
@every_impl
def test_a_hook_is_called_in_training(impl, device, of):
    called = []

    def hooked(model: Transformer) -> None:
        model.get_submodule(of).register_forward_hook(lambda *_: called.append(of))

    ours = trained(impl, "pre", device, change=hooked, layers=1)
    assert called == [of]
    torch.testing.assert_close(ours, trained("reference", "pre", device, layers=1))


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


def parts(model: Transformer, of: str) -> list[nn.Module]:
    """That part of every block that has it; all of the block by no name."""
    blocks = model.decoder if of == "source_attention" else (*model.encoder, *model.decoder)
    return [block.get_submodule(of) for block in blocks]


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
        found.append([hidden.detach(), *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
