"""Layers under autocast, in low precision, inside torch.compile and on a GPU."""

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.layers import DeepResidual
from drill.layers.label_map import LabelMap
from tests.helpers.devices import interpreted
from tests.layers.table import (
    CASES,
    ONE_EACH,
    D,
    Model,
    V,
    batch,
    every_case,
    every_matrix_case,
    given,
    make,
    model,
    one_of_each_layer,
)
from tests.layers.test_contract import IMPLS

bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(("impl", "smoothing"), [("reference", 0.0), ("chunked", 0.1)])
@every_case
def test_autocast_gives_a_close_loss_and_gradients_in_the_parameters_dtype(name, impl, smoothing):
    layer, hidden, targets = given(name, 3, 4)
    truth = layer.nll(hidden, targets, label_smoothing=smoothing)
    with bfloat16:
        loss = layer.nll(hidden, targets, label_smoothing=smoothing, impl=impl)
        probabilities = layer.log_probs(hidden).exp()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, truth, rtol=0.02, atol=0.02)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 4))
    loss.backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_matrix_case
def test_autocast_encodes_labels_in_its_dtype_and_leaves_others_as_they_are(name):
    layer = make(name)
    maps = [module for module in layer.modules() if isinstance(module, LabelMap)]
    encoded = bool(maps)
    plain = layer.label_weight.dtype
    with bfloat16:
        own = layer.label_weight.dtype  # descriptions are encoded by products too
        for labels in (layer.labels(), layer.labels(torch.arange(2))):
            assert labels.dtype == (torch.bfloat16 if encoded else own)
    assert layer.labels().dtype == plain


@IMPLS
@one_of_each_layer
def test_autocast_leaves_a_float64_layer_as_it_is(name, impl):
    layer, hidden, targets = given(name, 6, dtype=torch.float64)
    truth = layer.nll(hidden, targets, impl=impl), layer.log_probs(hidden), layer.logits(hidden)
    with bfloat16:
        found = layer.nll(hidden, targets, impl=impl), layer.log_probs(hidden), layer.logits(hidden)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)


@IMPLS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@one_of_each_layer
def test_a_half_precision_layer_has_about_the_loss_of_float64(name, dtype, impl):
    """test_placement.py has the dtypes of the loss and of gradients."""
    layer, exact = make(name, dtype), make(name, torch.float64)
    hidden, targets = batch(layer, 6)
    loss, truth = layer.nll(hidden, targets, impl=impl), exact.nll(hidden.double(), targets)
    torch.testing.assert_close(loss.double(), truth, rtol=0.05, atol=0.05)


def rms(found: Tensor, truth: Tensor) -> float:
    return (found.double() - truth).square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_matrix_case
def test_a_half_precision_fold_errs_as_the_layer_does(name, dtype):
    """Both round their logits once, the head after its bias and the layer before it.

    At logits of 40 one rounding of bfloat16 is 1/8, so the two may differ by tenths. What can be
    asked: the head rounds once and no more, and the layer is no further from the truth.
    """
    layer = make(name, dtype)
    exact = copy.deepcopy(layer).double()
    if isinstance(exact, DeepResidual):
        exact.impl = "reference"  # the fused one is not written for float64
    torch.manual_seed(0)
    hidden = 12 * torch.randn(400, layer.hidden_size).to(dtype)
    with torch.no_grad():
        truth = exact.log_probs(hidden.double())
        context, head = layer.context(hidden), layer.fold()
        scores = F.linear(context.double(), *(p.double() for p in head.parameters()))
        once = F.log_softmax(scores.to(dtype).float(), -1)
        folded, own = F.log_softmax(head(context).float(), -1), layer.log_probs(hidden)
    assert rms(folded, truth) <= 1.05 * rms(once, truth)
    assert rms(own, truth) <= 1.15 * rms(folded, truth)


def trained(built: Model, step, hidden: Tensor, targets: Tensor, **options) -> list[Tensor]:
    """A loss and the gradients it leaves, those of hidden first."""
    built.zero_grad()
    hidden = hidden.detach().clone().requires_grad_()
    torch.manual_seed(0)
    loss = step(hidden, targets, **options)
    loss.backward()
    wanted = (p for p in built.layer.parameters() if p.requires_grad)
    return [loss.detach(), hidden.grad, *(p.grad for p in wanted)]


def check_compiled(name: str, backend: str, *, training: bool = False, **options) -> None:
    """A compiled step is one graph and equals eager, with the same dropout masks."""
    torch.compiler.reset()
    built = model(name).train(training)
    given = batch(built.layer, 3, 2)
    step = torch.compile(built, fullgraph=True, backend=backend)
    # Compiled, the loop encodes whichever kernel is asked for.
    loose = {"rtol": 1e-3, "atol": 1e-4} if "fused" in name else {}
    found, truth = (trained(built, each, *given, **options) for each in (step, built))
    torch.testing.assert_close(found, truth, **loose)
    torch.compiler.reset()


COMPILED = ("deep residual 2", "adaptive deep residual")


@pytest.mark.filterwarnings(r"ignore:The \.grad attribute")  # dynamo's own, where a graph breaks
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tied", {"impl": "reference"}),
        *((name, {"impl": "chunked"}) for name in COMPILED),
        ("deep residual locked", {"training": True}),
        ("deep residual standard", {"training": True}),
        pytest.param("deep residual fused", {}, marks=interpreted),
        pytest.param("sampled deep residual", {"training": True}, marks=pytest.mark.slow),
        *(
            pytest.param(name, {"impl": "chunked"}, marks=pytest.mark.slow)  # a second each
            for name in ONE_EACH
            if name not in COMPILED
        ),
    ],
)
def test_a_compiled_step_is_one_graph_and_equals_eager(name, options):
    check_compiled(name, "aot_eager", **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when inductor is imported
@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="inductor needs a C++ compiler"
)
def test_inductor_compiles_the_step():
    check_compiled("deep residual 2", "inductor", impl="chunked", label_smoothing=0.1)


UNFUSED = {"hidden_size", "block", "residual_between"}
FUSED = {
    name: case.options | {"impl": "triton"}
    for name, case in CASES.items()
    if case.layer == "deep-residual"
    and case.options["depth"]
    and not case.options.keys() & {*UNFUSED, "init_range", "zero_start", "bias", "impl"}
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_encoder_serves_every_row_it_can_encode(name):
    """On a CPU two rows of the table are fused, and all suites run them."""
    torch.manual_seed(0)
    layer = DeepResidual(nn.Embedding(V, D, device="cuda"), **FUSED[name]).eval()
    twin = copy.deepcopy(layer)
    twin.impl = "reference"
    hidden, targets = torch.randn(7, D, device="cuda"), torch.arange(7, device="cuda")
    for each in (layer, twin):
        each.nll(hidden, targets, impl="reference").backward()
    grads = ([p.grad for p in each.parameters()] for each in (layer, twin))
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        found, truth = (each.log_probs(hidden) for each in (layer, twin))
        torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-3)
        rows = torch.tensor([3, 0, 3], device="cuda")
        torch.testing.assert_close(layer.labels(rows), layer.labels()[rows], rtol=1e-3, atol=1e-4)
        assert torch.equal(layer.fold()(hidden), layer.logits(hidden))
        with layer.cached_labels():
            assert torch.equal(layer.log_probs(hidden), found)
        layer.resize(V + 2)
        assert layer.labels().shape == (V + 2, D)
    layer.train()
    draws = not torch.equal(layer.labels(), layer.labels())
    assert draws == (FUSED[name].get("dropout", 0.0) > 0)
