"""Labels are encoded once until a change; ``shared_labels`` changes the price and nothing else."""

import copy
import gc
import pickle
import weakref
from contextlib import nullcontext, suppress

import pytest
import torch
from torch import Tensor, nn

from drill.layers import DeepResidual, Descriptions, MatrixLayer, StaleLabels, TiedSoftmax
from tests.layers.table import D, V, batch, every_case, given, make, matrix_of, one_of_each_layer


class Counted:
    """Counts how often a layer's labels are encoded and how often their backward runs."""

    def __init__(self, layer: MatrixLayer) -> None:
        self.encoded = self.differentiated = 0
        self.encode = layer.labels
        layer.labels = self

    def __call__(self, rows: Tensor | None = None) -> Tensor:
        self.encoded += 1
        labels = self.encode(rows)
        if labels.requires_grad:
            labels.register_hook(self.count)
        return labels

    def count(self, _: Tensor) -> None:
        self.differentiated += 1


# -- eval mode without gradients ----------------------------------------------------------------


@every_case
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "cached_labels"])
def test_labels_are_encoded_once_in_eval_mode_without_gradients(name, mode):
    layer, hidden, targets = given(name, 6)

    def answers() -> tuple[Tensor, Tensor]:
        return layer.log_probs(hidden), layer.nll(hidden, targets, label_smoothing=0.1)

    truth = [x.detach() for x in answers()]  # encoded as needed
    plain = isinstance(matrix_of(layer).weight, nn.Parameter)  # nothing to encode
    counted = Counted(matrix_of(layer))
    cached = mode == "cached_labels"
    block = layer.cached_labels() if cached else nullcontext()
    with getattr(torch, "no_grad" if cached else mode)(), block:
        for _ in range(3):
            assert all(map(torch.equal, answers(), truth))
    assert counted.encoded == 1 or (plain and not cached)
    before = counted.encoded
    layer.nll(hidden, targets).backward()  # with gradients they are encoded again
    assert counted.encoded == before + 1


def by_optimiser(kind: type, **options: bool):
    def write(module: nn.Module, name: str) -> None:
        parameter = module.get_parameter(name)
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.view(-1)[-1:] = 1.0  # of a single entry
        kind([parameter], lr=0.1, **options).step()

    return write


def by_new_data(module: nn.Module, name: str) -> None:
    parameter = module.get_parameter(name)
    parameter.data = parameter.data + 1


def by_new_data_twice(module: nn.Module, name: str) -> None:
    by_new_data(module, name)  # whose memory the second may get
    by_new_data(module, name)


def by_new_parameter(module: nn.Module, name: str) -> None:
    owner, _, last = name.rpartition(".")
    value = module.get_parameter(name).detach()
    setattr(module.get_submodule(owner), last, nn.Parameter(value + 1))


def by_assigning(module: nn.Module, name: str) -> None:
    state = {key: value.clone() for key, value in module.state_dict().items()}
    state[name] += 1
    module.load_state_dict(state, assign=True)


STEPS = [
    (torch.optim.SGD, {"foreach": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"fused": True}),
]
IN_PLACE = {
    "in place": lambda module, name: module.get_parameter(name).detach().view(-1)[-1:].add_(1),
    "data": lambda module, name: module.get_parameter(name).data.add_(1),
    "new data": by_new_data,
    "numpy": lambda module, name: module.get_parameter(name).detach().numpy().__iadd__(1),
}
WRITERS = {
    **IN_PLACE,
    "new data twice": by_new_data_twice,
    "new parameter": by_new_parameter,
    "assigned state": by_assigning,
    **{f"{kind.__name__} {options}": by_optimiser(kind, **options) for kind, options in STEPS},
}


@pytest.mark.parametrize("write", WRITERS)
@one_of_each_layer
def test_labels_are_encoded_again_after_a_write(name, write):
    layer = make(name)
    inner = matrix_of(layer)
    hidden, _ = batch(layer, 6)
    with torch.no_grad():
        for parameter, _ in list(inner.named_parameters()):
            layer.log_probs(hidden)
            before = inner.get_parameter(parameter).detach().clone()
            with torch.inference_mode(False):
                WRITERS[write](inner, parameter)
            assert not torch.equal(inner.get_parameter(parameter), before)
            assert torch.equal(layer.log_probs(hidden), copy.deepcopy(layer).log_probs(hidden))


CHANGES = {
    "residual": lambda layer: setattr(layer, "residual", False),
    "activation": lambda layer: setattr(layer.maps[0], "activation", "relu"),
    "a bias removed": lambda layer: setattr(layer.maps[0].linear, "bias", None),
    "maps removed": lambda layer: setattr(layer, "maps", layer.maps[:1]),
    "another embedding": lambda layer: setattr(layer, "embedding", nn.Embedding(V, D)),
}
MOVES = {
    "double": lambda layer: layer.double(),
    "to": lambda layer: layer.to(torch.float64),
    "resize": lambda layer: layer.resize(V + 3),
    "hook": lambda layer: layer.maps[0].register_forward_hook(lambda *given: given[-1] + 1),
    "labels": lambda layer: setattr(layer, "labels", lambda: torch.ones(V, D)),
    "averaged": lambda layer: nn.utils.vector_to_parameters(
        torch.ones(sum(p.numel() for p in layer.parameters())), layer.parameters()
    ),
    "train": lambda layer: layer.train(),
    "dropout": lambda layer: layer.maps[0].train(),
    "written labels": lambda layer: layer.weight.zero_(),
}


@pytest.mark.parametrize("change", [*CHANGES, *MOVES])
def test_labels_are_encoded_again_after_any_change(change):
    layer = DeepResidual(nn.Embedding(V, D), depth=2, dropout=0.5).eval()
    with torch.no_grad():
        layer.weight  # noqa: B018
        (CHANGES | MOVES)[change](layer)
        torch.manual_seed(0)
        found = layer.weight
        torch.manual_seed(0)
        assert torch.equal(found, layer.labels())


def test_reused_labels_follow_autocast():
    layer = DeepResidual(nn.Embedding(V, D), depth=2).eval()
    with torch.no_grad():
        wide = layer.weight
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.weight.dtype == torch.bfloat16
            assert layer.weight is layer.weight
        assert torch.equal(layer.weight, wide)


def test_copies_and_training_keep_no_labels():
    layer = DeepResidual(nn.Embedding(V, D), depth=2).eval()
    with torch.no_grad():
        cached = weakref.ref(layer.weight)
        for double in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            counted = Counted(double)
            double.weight  # noqa: B018
            assert counted.encoded == 1
        layer.train()
    assert cached() is None


def test_tensors_that_count_no_writes_are_encoded_each_time():
    with torch.inference_mode():
        layer = DeepResidual(nn.Embedding(V, D), depth=2).eval()
        counted = Counted(layer)
        assert torch.equal(layer.weight, layer.weight)
        assert counted.encoded == 2


# -- cached_labels ------------------------------------------------------------------------------


@pytest.mark.parametrize("write", IN_PLACE)
@one_of_each_layer
def test_a_parameter_written_inside_cached_labels_raises(name, write):
    layer = make(name)
    inner = matrix_of(layer)
    hidden, _ = batch(layer, 6)
    with torch.no_grad():
        for parameter, _ in list(inner.named_parameters()):
            with layer.cached_labels():
                layer.log_probs(hidden)
                IN_PLACE[write](inner, parameter)
                for _ in range(2):  # it never recovers by itself
                    with pytest.raises(StaleLabels):
                        layer.log_probs(hidden)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_setting_or_a_removed_part_is_stale(change):
    layer = DeepResidual(nn.Embedding(V, D), depth=2).eval()
    with layer.cached_labels(), torch.no_grad():
        CHANGES[change](layer)
        with pytest.raises(StaleLabels):
            layer.logits(torch.randn(2, D))


def test_an_encoder_with_state_can_be_cached():
    encoder = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, D))  # counts batches in a 0-dim buffer
    layer = TiedSoftmax(Descriptions(encoder, torch.randn(V, 6), D)).eval()
    hidden, _ = batch(layer, 2)
    layer.embedding.descriptions[0, 0] = torch.nan  # equal to itself
    with torch.no_grad():
        for buffer in (encoder[0].num_batches_tracked, layer.embedding.descriptions):
            with layer.cached_labels():
                layer.log_probs(hidden)
                buffer += 1
                with pytest.raises(StaleLabels):
                    layer.log_probs(hidden)


@one_of_each_layer
def test_cached_labels_serve_evaluation_only(name):
    layer, hidden, targets = given(name, 6)
    with layer.cached_labels(), pytest.raises(RuntimeError, match="no_grad"):
        layer.nll(hidden, targets)
    with layer.cached_labels(), torch.no_grad():
        layer.train()
        with pytest.raises(StaleLabels):
            layer.log_probs(hidden)
    with pytest.raises(RuntimeError, match="eval"), layer.cached_labels():
        pass
    assert matrix_of(layer).training


def test_cached_labels_of_a_frozen_layer_pass_gradients_to_hidden():
    layer = make("deep residual 2", torch.float64).requires_grad_(False)
    hidden, targets = batch(layer, 6)
    (truth,) = torch.autograd.grad(layer.nll(hidden, targets), hidden)
    with layer.cached_labels():
        (found,) = torch.autograd.grad(layer.nll(hidden, targets), hidden)
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("outer", ["cached_labels", "shared_labels"])
@pytest.mark.parametrize("inner", ["cached_labels", "shared_labels"])
@one_of_each_layer
def test_blocks_do_not_nest(name, outer, inner):
    layer, hidden, _ = given(name, 2)
    with torch.no_grad(), getattr(layer, outer)():
        with pytest.raises(RuntimeError, match="do not nest"), getattr(layer, inner)():
            pass
        layer.log_probs(hidden)  # the outer one still serves


@pytest.mark.parametrize("block", ["cached_labels", "shared_labels"])
@one_of_each_layer
def test_labels_are_released_after_an_exception(name, block):
    layer, hidden, targets = given(name, 6)
    counted = Counted(matrix_of(layer))
    with suppress(ZeroDivisionError), getattr(layer, block)():
        if block == "shared_labels":
            layer.nll(hidden, targets).backward()
        raise ZeroDivisionError
    assert counted.differentiated == 0
    layer.nll(hidden, targets).backward()
    assert counted.encoded == 2
    assert counted.differentiated > 0


@one_of_each_layer
def test_a_copy_made_inside_a_block_is_free(name):
    layer, hidden, targets = given(name, 6)
    with torch.no_grad(), layer.cached_labels():
        double = copy.deepcopy(layer)
    double.nll(hidden, targets).backward()


# -- shared_labels ------------------------------------------------------------------------------


def micro_batches(hidden: Tensor, targets: Tensor, size: int = 2) -> zip:
    return zip(hidden.split(size), targets.split(size), strict=True)


@every_case
def test_shared_labels_are_encoded_once_and_have_the_gradients_of_one_big_batch(name):
    layer = make(name, torch.float64)
    layer.train(layer is matrix_of(layer))  # a wrapper draws per call, so batches would differ
    hidden, targets = batch(layer, 7)
    torch.manual_seed(0)
    layer.nll(hidden, targets, reduction="sum").backward()
    leaves = [hidden, *layer.parameters()]
    truth = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    counted = Counted(matrix_of(layer))
    torch.manual_seed(0)
    with layer.shared_labels():
        for some, aims in micro_batches(hidden, targets):
            layer.nll(some, aims, reduction="sum").backward()
        assert counted.differentiated == 0
    assert (counted.encoded, counted.differentiated) == (1, 1)
    for leaf, grad in zip(leaves, truth, strict=True):
        torch.testing.assert_close(leaf.grad, grad, rtol=1e-12, atol=1e-12)


@one_of_each_layer
def test_shared_labels_without_backward_do_nothing(name):
    layer, hidden, targets = given(name, 6)
    truth = layer.nll(hidden, targets)
    with layer.shared_labels():
        assert torch.equal(layer.nll(hidden, targets), truth)
    with torch.no_grad(), layer.shared_labels():
        assert torch.equal(layer.nll(hidden, targets), truth)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_shared_labels_sum_bfloat16_gradients_in_float32():
    steps, size = 256, 4
    embedding = nn.Embedding(V, D, dtype=torch.bfloat16)
    layer = TiedSoftmax(embedding, bias=False).to(torch.bfloat16)
    exact = TiedSoftmax(nn.Embedding.from_pretrained(embedding.weight.double()), bias=False)
    exact.requires_grad_()
    hidden = torch.randn(steps * size, D, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.randint(V, (steps * size,), generator=torch.Generator().manual_seed(1))
    exact.nll(hidden.double(), targets, reduction="sum").backward()

    each = []
    for some, aims in micro_batches(hidden, targets, size):
        loss = layer.nll(some, aims, reduction="sum")
        each += torch.autograd.grad(loss, embedding.weight)
        layer.nll(some, aims, reduction="sum").backward()
    in_bfloat16, embedding.weight.grad = embedding.weight.grad, None
    in_float32 = torch.stack(each).float().sum(0)

    with layer.shared_labels():
        for some, aims in micro_batches(hidden, targets, size):
            layer.nll(some, aims, reduction="sum").backward()
    shared = embedding.weight.grad

    def error(grad: Tensor) -> float:
        return (grad.double() - exact.label_weight.grad).norm().item()

    assert shared.dtype == torch.bfloat16
    torch.testing.assert_close(shared.float(), in_float32, rtol=2**-8, atol=1e-4)
    assert error(shared) <= 1.1 * error(in_float32.bfloat16())
    assert error(shared) < error(in_bfloat16) / 4


def test_shared_labels_leave_no_garbage_behind():
    layer = DeepResidual(nn.Embedding(V, D), depth=2)
    hidden, targets = batch(layer, 6)
    gc.collect()
    gc.disable()  # what only the collector frees keeps (V, k) tensors alive for many steps
    try:
        with layer.shared_labels():
            labels = weakref.ref(layer.weight)
            layer.nll(hidden, targets).backward()
        assert labels() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [None, KeyError])
def test_backward_after_the_block_raises(error):
    layer = TiedSoftmax(nn.Embedding(V, D))
    with suppress(KeyError), layer.shared_labels():
        loss = layer.nll(torch.randn(3, D), torch.arange(3))
        if error is not None:
            raise error
    with pytest.raises(RuntimeError, match="inside the block"):
        loss.backward()


@pytest.mark.parametrize(("kind", "options"), STEPS, ids=str)
def test_a_step_inside_shared_labels_raises(kind, options):
    layer = DeepResidual(nn.Embedding(V, D), depth=2)
    optimizer = kind(layer.parameters(), lr=0.1, **options)  # of gradients that do not exist yet
    loss = layer.nll(torch.randn(3, D), torch.arange(3))
    with pytest.raises(StaleLabels, match="step after"), layer.shared_labels():
        optimizer.step(loss.backward)
    optimizer.step()  # outside it is free again


def test_a_step_taken_by_the_backward_of_the_labels_is_not_inside():
    layer = TiedSoftmax(nn.Embedding(V, D), bias=False)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    before = layer.label_weight.detach().clone()
    layer.label_weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with layer.shared_labels():
        layer.nll(torch.randn(3, D), torch.arange(3)).backward()
    assert not torch.equal(layer.label_weight, before)
