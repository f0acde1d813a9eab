"""LSTM layers over a sequence, by the implementation that suits the device.

i, f, g, o = gates of  W_ih x_t + b_ih + W_hh h_{t-1} + b_hh
c_t = f c_{t-1} + i g        h_t = o tanh(c_t)

reference   the equation, step by step
cudnn       PyTorch's own: cuDNN on a GPU, oneDNN on a CPU
persistent  one launch for all steps, weights in registers: Hopper GPUs, small batches
graph       a product and a kernel per step, replayed as CUDA graphs: any NVIDIA GPU with bfloat16

The last two multiply in bfloat16, with float32 sums and cell states. ``reference`` and ``graph``
have a mask of h where the next step reads it, and input gates capped at 1 - f.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.errors import invalid, require
from drill.kernels.lstm.persistent.recurrence import unsupported_reason
from drill.kernels.lstm.persistent.stack import persistent_layers
from drill.kernels.lstm.weights import Weights
from drill.kernels.runtime.checks import one_of
from drill.kernels.runtime.dispatch import autocast_on, log_once, triton_missing
from drill.kernels.runtime.dropout_masks import draw_mask, drop_entries, masked

Implementation = Literal["auto", "reference", "cudnn", "persistent", "graph"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("auto", "reference", "cudnn", "persistent", "graph")


def lstm(
    x: Tensor,  # (T, B, i)
    h: Tensor,  # (1, B, o)
    c: Tensor,  # (1, B, o)
    weights: Weights,
    impl: Implementation = "auto",
    *,
    drop: float = 0.0,
    mask: Tensor | None = None,  # (B, o)
    cap_input_gate: bool = False,
    keep_padding: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM layer over T steps.

    Args:
        x: (T, B, i), the input.
        h: (1, B, o), the hidden state before the first step.
        c: (1, B, o), the cell state before it.
        weights: as of ``nn.LSTM``.
        impl: "auto" takes "persistent" for products in bfloat16 and small batches if the device
            allows it, else "graph"; for other products "cudnn". The log says which, once.
        drop: DropConnect probability of W_hh; the Parameter itself does not change.
        mask: (B, o), of h where the next step reads it (dropout of the state); no gradient.
        cap_input_gate: input gates are at most 1 - the forget gates.
        keep_padding: the output of "persistent" and "graph" may be wider than o, with zeros there,
            and x wider than i: a stack of layers then stays aligned in memory.

    Returns:
        The output (T, B, o), and h and c (1, B, o) after the last step.
    """
    _check_shapes(x.shape, h, c, weights)
    _check_shares("lstm", drop=drop)
    plain = mask is None and not cap_input_gate
    chosen = _logged_choice(impl, x, weights, plain)
    return _layer(chosen, x, h, c, weights, drop, mask, cap_input_gate, keep_padding)


def _layer(
    chosen: str,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    drop: float,
    mask: Tensor | None,
    cap_input_gate: bool,
    keep_padding: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if chosen == "persistent":
        output, [(h, c)] = persistent_layers(x, [(h, c)], [weights], drop)
        return output if keep_padding else _narrowed(output, h.shape[2]), h, c
    if chosen == "graph":
        return _stepwise(x, h, c, weights, drop, mask, cap_input_gate, keep_padding)
    weights = weights._replace(w_hh=drop_entries(weights.w_hh, drop))
    x = x[..., : weights.w_ih.shape[1]]
    if chosen == "cudnn":
        return _library(x, h, c, weights)
    return _reference(x, h, c, weights, mask, cap_input_gate)


def lstm_stack(
    x: Tensor,  # (T, B, i)
    states: Sequence[tuple[Tensor, ...]],  # h and c of each layer, (1, B, o)
    weights: Sequence[Weights],  # of each layer; i of a later one is o of the one below
    impl: Implementation = "auto",
    *,
    drop: float = 0.0,
    between: float = 0.0,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Output (T, B, o) of the last of several layers, and h and c of each after the last step.

    A layer reads the output of the one below, with locked dropout of probability ``between``.
    Faster than calls of ``lstm`` if all are ``persistent``: weights of one layer are then prepared,
    and their gradients computed, while the steps of another run.
    """
    _check_stack(x.shape, states, weights)
    _check_shares("lstm_stack", drop=drop, between=between)
    chosen = [_logged_choice(impl, x, each) for each in weights]
    if all(each == "persistent" for each in chosen):
        output, ends = persistent_layers(x, states, weights, drop, between)
        return _narrowed(output, weights[-1].w_hh.shape[1]), ends
    ends = []
    for i, ((h, c), each) in enumerate(zip(states, weights, strict=True)):
        if i > 0 and between > 0.0:
            x = masked(x, draw_mask((1, *x.shape[1:]), between, x))
        inner = i + 1 < len(weights)
        x, h, c = _layer(chosen[i], x, h, c, each, drop, None, False, keep_padding=inner)
        ends.append((h, c))
    return x, ends


def _logged_choice(impl: Implementation, x: Tensor, weights: Weights, plain: bool = True) -> str:
    chosen, reason = choose(impl, x, weights.w_hh, plain)
    if not torch.compiler.is_compiling():
        log_once("lstm", in_words(chosen, x.device), reason)
    return chosen


def choose(impl: Implementation, x: Tensor, w_hh: Tensor, plain: bool = True) -> tuple[str, str]:
    """The implementation that ``impl`` means here, and why; not ``plain``: with mask or cap."""
    one_of("lstm", "impl", impl, IMPLEMENTATIONS)
    special = "neither cuDNN nor persistent has a mask of the state or a capped input gate"
    if not plain and impl in ("cudnn", "persistent"):
        raise ValueError(f"lstm: impl {impl} does not run here: {special}; use auto")
    if impl in ("reference", "cudnn"):
        return impl, "requested"
    if impl != "auto":
        obstacle = _unavailable(impl, x, w_hh)
        if obstacle is not None:
            raise ValueError(f"lstm: impl {impl} does not run here: {obstacle}; use auto")
        return impl, "requested"
    slow = "cudnn" if plain else "reference"
    if not x.is_cuda:  # there Triton interprets, if at all
        return slow, f"on {'a CPU' if x.device.type == 'cpu' else x.device.type}"
    half = w_hh.dtype == torch.bfloat16
    if autocast_on(x.device):
        half = torch.get_autocast_dtype(x.device.type) == torch.bfloat16
    if not half:
        return slow, "products are not in bfloat16"
    obstacle = _unavailable("persistent", x, w_hh) if plain else special
    if obstacle is None:
        return "persistent", "products are in bfloat16 and the device allows it"
    obstacle = f"not persistent: {obstacle}"
    missing = _unavailable("graph", x, w_hh)
    return (slow, f"{obstacle}; nor graph: {missing}") if missing else ("graph", obstacle)


def in_words(chosen: str, device: torch.device) -> str:
    """The choice as it is reported: cuDNN is on GPUs only."""
    return "PyTorch's own" if chosen == "cudnn" and device.type != "cuda" else chosen


def _unavailable(impl: str, x: Tensor, w_hh: Tensor) -> str | None:
    """Why ``impl`` does not run on this device; None where it does."""
    device = x.device
    if impl == "persistent":
        obstacle = unsupported_reason(device, w_hh.shape[1], batch=x.shape[1])
        return obstacle or triton_missing(device, torch.bfloat16)
    if device.type == "cuda" and torch.version.hip:
        return "it needs an NVIDIA GPU"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs a GPU that multiplies bfloat16, compute capability 8 or more"
    return triton_missing(device, torch.bfloat16)


def _check_shapes(x: torch.Size, h: Tensor, c: Tensor, weights: Weights) -> None:
    """Kernels rely on these sizes: a wrong one would read other memory."""
    shapes = [tuple(weight.shape) for weight in weights]
    o, i = weights.w_hh.shape[-1], weights.w_ih.shape[-1]
    if shapes != [(4 * o, i), (4 * o, o), (4 * o,), (4 * o,)]:
        expected = "(4 o, i), (4 o, o), (4 o,) and (4 o,), as of nn.LSTM"
        raise invalid("lstm", "weights", expected, shapes)
    if len(x) != 3 or 0 in x or x[2] < i:
        expected = f"(T, B, {i}) with at least one step and sequence"
        raise invalid("lstm", "x", expected, tuple(x))
    state, given = (1, x[1], o), [tuple(h.shape), tuple(c.shape)]
    if given != [state, state]:
        raise invalid("lstm", "h and c", f"{state} for x {tuple(x)}", given)


def _check_stack(
    x: torch.Size, states: Sequence[tuple[Tensor, ...]], weights: Sequence[Weights]
) -> None:
    """Each layer must read all units of the one below."""
    if not weights or len(states) != len(weights):
        expected = f"of at least one layer, as many as states ({len(states)})"
        raise invalid("lstm_stack", "weights", expected, len(weights))
    for number, ((h, c), each) in enumerate(zip(states, weights, strict=True), 1):
        _check_shapes(x, h, c, each)
        shape = tuple(each.w_ih.shape)
        if shape[1] != x[2]:
            below = f"layer {number - 1}" if number > 1 else "x"
            expected = f"of shape {(shape[0], x[2])}, as wide as {below}"
            raise invalid("lstm_stack", f"W_ih of layer {number}", expected, shape)
        x = torch.Size([*x[:2], each.w_hh.shape[1]])


def _check_shares(whose: str, **shares: float) -> None:
    for name, share in shares.items():
        require(0.0 <= share < 1.0, whose, name, "a probability in [0, 1)", share)


def _stepwise(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    drop: float,
    mask: Tensor | None,
    capped: bool,
    keep_padding: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from drill.kernels.lstm.stepwise.stepwise_lstm import StepwiseLstm

    w_ih, w_hh, b_ih, b_hh = weights
    with torch.autocast(x.device.type, enabled=False), torch.cuda.device_of(x):
        bias = b_ih.float() + b_hh.float()
        given = (x, h[0], c[0], w_ih, w_hh, bias)
        output, last = StepwiseLstm.apply(*given, drop, mask, capped)
    width = h.shape[2]
    ended = output[-1:, :, :width].to(h.dtype)
    output = output if keep_padding else _narrowed(output, width)
    return output, ended, last[None].to(c.dtype)


def _narrowed(output: Tensor, width: int) -> Tensor:
    """Without its padding. A slice of everything would still copy its gradient."""
    return output if output.shape[2] == width else output[..., :width]


def _library(x: Tensor, h: Tensor, c: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    if x.is_cuda and autocast_on(x.device):
        # Autocast itself would give cuDNN float16, whatever dtype it is set to.
        dtype = torch.get_autocast_dtype(x.device.type)
        x, h, c, *each = (tensor.to(dtype) for tensor in (x, h, c, *weights))
        with torch.autocast(x.device.type, enabled=False):
            return _library(x, h, c, Weights(*each))
    given = list(weights)
    if x.is_cuda and not lie_together(given):  # a CPU reads them wherever they are
        given = in_one_buffer(given)
    train = torch.is_grad_enabled()
    biases, depth, dropout, bidirectional, batch_first = True, 1, 0.0, False, False
    return torch.lstm(x, (h, c), given, biases, depth, dropout, train, bidirectional, batch_first)


def lie_together(weights: list[Tensor]) -> bool:
    """Whether each begins where the one before it ends, in the same buffer.

    Separate tensors may be adjacent by chance: cuDNN would still copy them.
    """
    buffers = {weight.untyped_storage().data_ptr() for weight in weights}
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    return (
        len(buffers) == 1
        and all(weight.is_contiguous() for weight in weights)
        and all(weight.data_ptr() == end for weight, end in zip(weights[1:], ends, strict=False))
    )


def in_one_buffer(weights: list[Tensor]) -> list[Tensor]:
    """The same weights, one after the other in memory, in the order of ``nn.LSTM``.

    Given separate tensors, cuDNN copies them into one buffer at every call and warns.
    """
    buffer = torch.cat([weight.flatten() for weight in weights])
    pieces = buffer.split([weight.numel() for weight in weights])
    return [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]


def _reference(
    x: Tensor, h: Tensor, c: Tensor, weights: Weights, mask: Tensor | None, capped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    w_ih, w_hh, b_ih, b_hh = weights
    inputs = F.linear(x, w_ih, b_ih + b_hh)  # (T, B, 4 o)
    hidden, cell = h[0], c[0]
    outputs = []
    for step in inputs:
        read = hidden if mask is None else masked(hidden, mask)
        i, f, g, o = (step + F.linear(read, w_hh)).chunk(4, dim=1)
        i, f = i.sigmoid(), f.sigmoid()
        if capped:
            i = torch.minimum(i, 1.0 - f)
        cell = f * cell + i * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), hidden[None], cell[None]
