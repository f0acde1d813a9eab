"""A residual and its norm in one pass, relu and dropout in one pass: against float64."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.runtime.dropout_masks import drawn_seeds
from drill.kernels.transformer.autocast_linear import LinearWeights, cast_together, linear
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import choose_sublayer, residual_norm
from tests.helpers.devices import needs_triton, triton_devices

SHAPES = {"cpu": [(1, 12), (3, 23, 40)], "cuda": [*product((1, 67, 4096), (12, 256, 512, 1024))]}
DROPOUT = 0.3


def problem(shape: tuple[int, ...], dtype, half, device) -> list[Tensor]:
    """x, y, b, gamma and beta."""
    torch.manual_seed(0)
    width = shape[-1]
    x, y = (torch.randn(shape, device=device).to(kind) for kind in (dtype, half))
    vectors = [torch.randn(width, device=device).to(dtype) for _ in range(3)]
    return [x * 2 + 1, y, *vectors]


def formula(given: list[Tensor], mask: Tensor, carry_norm: bool) -> tuple[Tensor, Tensor]:
    x, y, b, gamma, beta = given
    r = x + mask * (y + b)
    n = F.layer_norm(r, r.shape[-1:], gamma, beta)
    return n if carry_norm else r, n


def seed(dropout: float, device: str | torch.device) -> dict:
    """Dropout, and the seed it needs."""
    return {"dropout": dropout, "seed": drawn_seeds(1, device)[0] if dropout else None}


def identity(bias: Tensor, half: torch.dtype = torch.float32) -> LinearWeights:
    """A map that adds the bias."""
    eye = torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
    return cast_together([(eye, bias)], half)[0]


def kernel(given: list[Tensor], half, dropout: float, carry_norm: bool) -> tuple[Tensor, Tensor]:
    x, y, b, gamma, beta = given
    options = {"carry_norm": carry_norm, "dtype": half, **seed(dropout, x.device)}
    return residual_norm(x, y, gamma, beta, y_linear=identity(b, half), **options)


def drawn(shape: tuple[int, ...], dropout: float, device: str) -> Tensor:
    """The mask that a seed gives: what is left of ones."""
    torch.manual_seed(1)
    x, ones = torch.zeros(shape, device=device), torch.ones(shape[-1], device=device)
    options = {"y_linear": identity(torch.zeros_like(ones)), **seed(dropout, device)}
    return residual_norm(x, x + 1, ones, ones, **options)[0].double()


def differentiated(function, given: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in given]
    out = function(leaves)
    return [*(each.detach() for each in out), *torch.autograd.grad(out, leaves, weights)]


@pytest.mark.parametrize(
    ("dtype", "half", "carry_norm", "dropout"),
    [  # dtype of the residual and that of products: plain, autocast, a model in half precision
        (torch.float32, torch.float32, False, 0.0),
        (torch.float32, torch.float32, True, DROPOUT),
        (torch.float32, torch.bfloat16, False, DROPOUT),
        (torch.float32, torch.bfloat16, True, 0.0),
        (torch.float32, torch.float16, False, DROPOUT),
        (torch.bfloat16, torch.bfloat16, True, DROPOUT),
    ],
    ids=str,
)
@triton_devices
def test_a_residual_and_its_norm_are_those_of_the_formula(
    device, dtype, half, carry_norm, dropout, nan_in_fresh_memory
):
    for shape in SHAPES[device]:
        given = problem(shape, dtype, half, device)
        mask = drawn(shape, dropout, device)
        weights = [torch.randn(shape, device=device).to(kind) for kind in (dtype, half)]
        truth = differentiated(
            lambda leaves, mask=mask: formula(leaves, mask, carry_norm),
            [each.double() for each in given],
            [each.double() for each in weights],
        )
        torch.manual_seed(1)
        found = differentiated(
            lambda leaves: kernel(leaves, half, dropout, carry_norm), given, weights
        )
        kinds = [dtype, half, dtype, half, dtype, dtype, dtype]
        for exact, ours, kind in zip(truth, found, kinds, strict=True):
            assert ours.dtype == kind
            # In half precision r is rounded before it is normed. Triton's interpreter cuts off.
            coarse = dtype if kind == torch.float32 else kind
            assert (ours.double() - exact).norm() <= 4 * torch.finfo(coarse).eps * exact.norm()


@triton_devices
def test_the_first_norm_of_a_stack_has_nothing_to_add(device):
    for shape in SHAPES[device]:
        x, _, _, gamma, beta = problem(shape, torch.float32, torch.float32, device)
        weights = [torch.randn(shape, device=device) for _ in range(2)]

        def ours(leaves):
            return residual_norm(leaves[0], None, *leaves[1:])

        def plain(leaves):
            return leaves[0] * 1, F.layer_norm(leaves[0], leaves[1].shape, *leaves[1:])

        found = differentiated(ours, [x, gamma, beta], weights)
        doubles = [each.double() for each in (x, gamma, beta)]
        truth = differentiated(plain, doubles, [each.double() for each in weights])
        for exact, each in zip(truth, found, strict=True):
            assert (each.double() - exact).norm() <= 3e-7 * exact.norm()


@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["residual_norm", "relu_dropout"])
@triton_devices
def test_the_map_is_a_product_before(device, kernel, half):
    """Outputs and all gradients, of the map too, which are in its own dtype."""
    torch.manual_seed(4)
    shapes = ((3, 23, 40), (3, 23, 24), (40, 24), (40,), (40,), (40,))
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    x, y, matrix, b, gamma, beta = leaves
    (weights,) = cast_together([(matrix, b)], half)
    given = [torch.randn(3, 23, 40, device=device).to(kind) for kind in (torch.float32, half)]

    def both(inside, apply):
        torch.manual_seed(1)
        if kernel == "relu_dropout":
            out = relu_dropout(inside, apply, **seed(DROPOUT, device))
            return [out, *torch.autograd.grad(out, [y, matrix, b], given[1])]
        options = {"dtype": half, **seed(DROPOUT, device)}
        out = residual_norm(x, inside, gamma, beta, y_linear=apply, **options)
        return [*out, *torch.autograd.grad(out, leaves, given)]

    none = torch.zeros_like(b)
    alone = weights._replace(bias=none, half_bias=none.to(half))
    apart = both(linear(y, alone), identity(b, half))
    together = both(y, weights)
    assert [each.dtype for each in together] == [each.dtype for each in apart]
    bound = 1e-4 if half == torch.float32 else 0.02  # another layout may sum in another order
    torch.testing.assert_close(together, apart, rtol=bound, atol=bound)


@pytest.mark.parametrize("used", ["carried", "read"])
@pytest.mark.parametrize("carry_norm", [False, True], ids=["pre", "post"])
@triton_devices
def test_what_nobody_uses_has_no_part_in_gradients(device, carry_norm, used):
    shape = (9, 24)
    given = problem(shape, torch.float32, torch.bfloat16, device)
    weight = torch.randn(shape, device=device)
    mask, place = torch.ones((), device=device), ["carried", "read"].index(used)

    def gradients(function, given):
        leaves = [each.detach().requires_grad_() for each in given]
        (function(leaves)[place].double() * weight).sum().backward()
        return [each.grad for each in leaves]

    found = gradients(lambda leaves: kernel(leaves, torch.bfloat16, 0.0, carry_norm), given)
    truth = gradients(lambda leaves: formula(leaves, mask, carry_norm), [g.double() for g in given])
    for ours, exact in zip(found, truth, strict=True):
        exact = torch.zeros_like(ours).double() if exact is None else exact
        assert (ours.double() - exact).norm() <= 0.01 * exact.norm()


@triton_devices
def test_a_seed_gives_the_same_bits_and_the_next_draw_other_ones(device):
    shape = (80, 24) if device == "cpu" else (5000, 512)  # several programs
    given = problem(shape, torch.float32, torch.bfloat16, device)
    weights = [torch.randn(shape, device=device) for _ in range(2)]
    weights[1] = weights[1].bfloat16()

    def once():
        return differentiated(
            lambda leaves: kernel(leaves, torch.bfloat16, 0.3, False), given, weights
        )

    torch.manual_seed(5)
    first, other = once(), once()
    torch.manual_seed(5)
    again = once()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("width", [12, 40, 1024])
@triton_devices
def test_dropout_keeps_its_share_of_every_place(device, width):
    rows = 4096 if device == "cuda" else 6_000 // width
    mask = drawn((rows, width), 0.1, device)
    kept = mask > 0
    torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / 0.9))
    count = rows * width
    assert abs(kept.double().mean().item() - 0.9) < 4 * (0.09 / count) ** 0.5
    for axis, size in ((0, rows), (1, width)):  # no column and no row is favoured
        assert (kept.double().mean(axis) - 0.9).abs().max() < 6 * (0.09 / size) ** 0.5
    neighbours = (kept[:, 1:] == kept[:, :-1]).double().mean().item()
    assert abs(neighbours - 0.82) < 5 * (0.15 / count) ** 0.5


@pytest.mark.parametrize("dropout", [0.0, DROPOUT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@triton_devices
def test_relu_and_dropout_are_those_of_the_formula(device, dtype, dropout, nan_in_fresh_memory):
    for shape in [(1, 12), (3, 23, 40), (35, 130)] if device == "cpu" else [(67, 12), (4096, 2048)]:
        torch.manual_seed(2)
        x, weight = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        bias = torch.randn(shape[-1], device=device)
        x, bias = x.requires_grad_(), bias.requires_grad_()
        options = seed(dropout, device)
        sure = relu_dropout(torch.ones_like(x), identity(bias * 0, dtype), **options)
        y = relu_dropout(x, identity(bias, dtype), **options)
        dx, db = torch.autograd.grad(y, [x, bias], weight)
        mask = (sure > 0).double() / (1 - dropout)
        exact_x, exact_bias = (each.detach().double().requires_grad_() for each in (x, bias))
        exact = (exact_x + exact_bias).relu() * mask
        truth = torch.autograd.grad(exact, [exact_x, exact_bias], weight.double())
        eps = 2 * torch.finfo(dtype).eps
        assert (y.double() - exact).norm() <= eps * exact.norm()
        assert y.dtype == dx.dtype == dtype
        assert (dx.double() - truth[0]).norm() <= eps * truth[0].norm()
        assert db.dtype == torch.float32
        assert (db.double() - truth[1]).norm() <= 1e-6 * truth[1].norm()


@triton_devices
def test_nan_stays_nan(device):
    x = torch.zeros(4, 16, device=device)
    x[1, 3] = torch.nan
    ones = torch.ones(16, device=device)
    y, only = relu_dropout(x, identity(ones), 0.0), [False, True, False, False]
    assert y.isnan().any(1).tolist() == y.isnan().all(1).tolist() == only
    r, n = residual_norm(x, ones.expand_as(x), ones, ones, y_linear=identity(ones))
    assert r.isnan().sum() == 1
    assert n.isnan().any(1).tolist() == only


@triton_devices
def test_no_rows_cost_nothing(device):
    x, ones = torch.zeros(0, 3, 16, device=device), torch.ones(16, device=device)
    leaves = [each.requires_grad_() for each in (x, ones)]
    r, n = residual_norm(x, x, ones, ones, y_linear=identity(ones))
    y = relu_dropout(x, identity(ones), **seed(0.1, device))
    assert r.shape == n.shape == y.shape == x.shape
    d_x, d_ones = torch.autograd.grad((r + n + y).sum(), leaves)
    assert d_x.shape == x.shape
    assert not d_ones.any()


def test_dtypes_without_kernels_raise_and_auto_takes_plain_pytorch():
    x = torch.zeros(4, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match='impl="triton"'):
        choose_sublayer("triton", x)
    assert choose_sublayer("auto", x)[0] == "reference"


@pytest.mark.gpu
@needs_triton
def test_a_gpu_takes_the_kernels_where_gradients_are_recorded():
    x = torch.randn(4, 6, device="cuda")
    assert choose_sublayer("auto", x)[0] == "triton"
    with torch.no_grad():
        assert choose_sublayer("auto", x) == ("reference", "no gradients are recorded")
    assert choose_sublayer("auto", x.double())[0] == "reference"
