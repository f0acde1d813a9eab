"""All maps of the label encoder in one launch each way, on Hopper GPUs, in bfloat16.

A block carries 128 labels through all maps: what a map multiplies lies in shared memory, its sums
in registers, and U streams past. The gradients of all U, and with them those of all b, come from a
batched product as in ``pointwise``. See ``encode_labels``, and for how it is done
``chain.cuh``.

Shapes: V labels, d width, L maps; X has d' > d columns, of which the last are ones.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drill.kernels.label_encoder.options import ACTIVATION_CODES, Options
from drill.kernels.label_encoder.weight_gradients import EXTRA, planes_for_sums, sum_in_parts
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.hopper import SHARED, hopper_missing
from drill.kernels.runtime.nvrtc import CompileError, DriverError, Kernel, load_kernel
from drill.kernels.runtime.overlap import awaited_by, on_stream
from drill.kernels.runtime.padding import aligned, without_padding

FORWARD = Path(__file__).with_name("chain_forward.cu")
BACKWARD = Path(__file__).with_name("chain_backward.cu")
PARAMETERS = Path(__file__).with_name("chain_parameters.cu")
ROWS = 128  # labels of a block
THREADS = 384
PARAMETER_THREADS = 256  # as in the source
CLUSTER = 2  # blocks that share the stream of U
MOST_STAGES = 16
WIDTHS = range(16, 401, 8)  # of the widest a thread has 200 sums
MOST_MAPS = 16  # whose gradients the last of them sums in registers


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    width: int
    maps: int
    options: Options
    narrow: bool  # labels in bfloat16

    @property
    def padded(self) -> int:
        return -(-self.width // 16) * 16

    @property
    def labels_bytes(self) -> int:
        """Of the labels in shared memory, eight columns after the other, 16 bytes between them."""
        return -(-self.padded // 8 * (16 * ROWS + 16) // 128) * 128

    @property
    def stages(self) -> int:
        """Steps of 16 columns of U that fit next to the labels, with two barriers each."""
        return min(MOST_STAGES, (SHARED - self.labels_bytes) // self._stage)

    @property
    def shared(self) -> int:
        return self.labels_bytes + self.stages * self._stage

    @property
    def _stage(self) -> int:
        return 32 * self.padded + 16

    def defines(self) -> dict[str, int]:
        sums = self.padded // 4
        return {
            "WIDTH": self.width,
            "MAPS": self.maps,
            "ACTIVATION": self.options.activation,
            "MASK_IN": int(self.options.mask_in),
            "MASK_OUT": int(self.options.mask_out),
            "RESIDUAL": int(self.options.residual),
            "NARROW": int(self.narrow),
            "CLUSTER": CLUSTER,
            "STAGES": self.stages,
            "COLUMNS": self.padded // 2,
            "OUTPUTS": sums,
            "QUARTER": sums // 4,
            "FIRST": sums,
            "SECOND": sums + 1,
        }


def chain_missing(
    embedding: Tensor, dtype: torch.dtype, options: Options, depth: int
) -> str | None:
    """Why these labels cannot be encoded in one launch; None where they can."""
    V, d = embedding.shape
    if obstacle := hopper_missing(embedding.device):
        return obstacle
    if dtype != torch.bfloat16 or embedding.dtype not in (torch.bfloat16, torch.float32):
        return f"it multiplies bfloat16, not {dtype}"
    if V < ROWS or d not in WIDTHS or depth > MOST_MAPS:
        return (
            f"it takes {ROWS} labels and more, widths that are multiples of {WIDTHS.step} from "
            f"{WIDTHS[0]} to {WIDTHS[-1]} and up to {MOST_MAPS} maps"
        )
    if options.norm or options.mlp:
        return "it knows no norm and no second matrix"
    if options.locked and (options.mask_in or options.mask_out):
        return "it knows no locked masks"
    shape = _shape(embedding, options, depth)
    try:
        # All now: no launch can be recorded while one compiles.
        for source in (FORWARD, BACKWARD):
            _kernel(source, shape, embedding.device)
        for name in ("prepare", "finish"):
            _for_parameters(name, shape, embedding.device)
    except (CompileError, DriverError) as error:
        return str(error)
    return None


def _shape(embedding: Tensor, options: Options, depth: int) -> Shape:
    # The scale is an argument of the launch, so that another dropout needs no other kernel.
    same = options._replace(scale=1.0, locked=False)
    return Shape(embedding.shape[1], depth, same, embedding.dtype == torch.bfloat16)


def _kernel(source: Path, shape: Shape, device: torch.device) -> Kernel:
    return load_kernel(source, source.stem, shape.defines(), shape.shared, device)


class _Parameters(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p * MOST_MAPS),
        ("biases", ctypes.c_void_p * MOST_MAPS),
    )


def _for_parameters(name: str, shape: Shape, device: torch.device) -> Kernel:
    defines = {"WIDTH": shape.width, "MAPS": shape.maps, "MOST": MOST_MAPS}
    return load_kernel(PARAMETERS, f"chain_{name}", defines, 0, device)


class ChainEncode(torch.autograd.Function):
    """(embedding, masks, dtype, options, depth, keep, *weights, *biases) -> labels (V, d)."""

    @staticmethod
    def forward(
        ctx: Any,
        embedding: Tensor,
        masks: Tensor | None,
        dtype: torch.dtype,
        options: Options,
        depth: int,
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        E = _vectors(embedding)
        V, d = E.shape
        shape = _shape(E, options, depth)
        weights, biases = parameters[:depth], parameters[depth:]
        U, U_back, b = prepared(weights, biases, shape, keep)
        bits = E.new_empty(0) if masks is None else masks.contiguous()
        planes = depth if keep else 0  # what has no entries is a null pointer to the kernel
        X = planes_for_sums(E, planes, V, d + EXTRA)
        kept = _kept(E, shape, planes)
        Y = E.new_empty((aligned(V, E.device.type), d), dtype=dtype)
        tiles = _tiles(V)
        _kernel(FORWARD, shape, E.device)(
            _blocks(E.device, tiles),
            THREADS,
            [
                E,
                U,
                b,
                bits,
                X,
                kept,
                Y,
                V,
                X.shape[1],
                Y.shape[0],
                tiles,
                ctypes.c_float(options.scale),
            ],
        )
        if keep:
            ctx.save_for_backward(bits, X, kept, U_back)
        ctx.stream = awaited_by()
        ctx.shape = shape
        ctx.scale = options.scale
        ctx.has_bias = bool(biases)
        ctx.dtypes = (embedding.dtype, parameters[0].dtype, parameters[-1].dtype)
        return without_padding(Y, V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("DeepResidual", grad)
        # While recurrences run, backward has less room: gradients of weights are made there.
        saved = ctx.saved_tensors  # once: checkpointing computes them at every access
        with on_stream(ctx.stream, (grad, *saved)):
            return _gradients(ctx, saved, grad)


def _gradients(ctx: Any, saved: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    bits, X, kept, U = saved
    shape: Shape = ctx.shape
    V, d = grad.shape
    dY = _vectors(grad)
    dP = planes_for_sums(dY, shape.maps, V, d)
    dE = dY.new_empty((V, d), dtype=torch.float32)
    # Gradients that E gets from all results but the last, where it was added.
    G = dY.new_empty((shape.maps - 1 if shape.options.residual else 0, V, d))
    tiles = _tiles(V)
    _kernel(BACKWARD, shape, dY.device)(
        _blocks(dY.device, tiles),
        THREADS,
        [dY, U, bits, kept, G, dP, dE, V, dP.shape[1], tiles, ctypes.c_float(ctx.scale)],
    )
    dU, db = finished(sum_in_parts(dP, X, V), shape, *ctx.dtypes[1:])
    of_biases = db.to(ctx.dtypes[2]).unbind() if ctx.has_bias else ()
    of_weights = dU.to(ctx.dtypes[1]).unbind()
    return dE.to(ctx.dtypes[0]), None, None, None, None, None, *of_weights, *of_biases


def prepared(
    weights: Sequence[Tensor], biases: Sequence[Tensor], shape: Shape, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All U (n, k) as the kernels stream them, (L, k' / 8, n' / 8, 8, 8), padded to n' = k'.

    Eight rows of eight entries lie together, as the matrix instruction reads them. With ``keep``
    also U^T so, for backward; and all b (L, d) in float32.
    """
    of_maps, wide = _readable(weights)
    of_biases, wide_biases = _readable(biases)
    L, groups = shape.maps, shape.padded // 8
    tiled = (L, groups, groups, 8, 8)
    U = of_maps[0].new_empty(tiled, dtype=torch.bfloat16)
    U_back = torch.empty_like(U) if keep else U.new_empty(0)
    b = U.new_empty((L, shape.width), dtype=torch.float32)
    table = _Parameters()
    for pointers, given in ((table.weights, of_maps), (table.biases, of_biases)):
        for i, each in enumerate(given):
            pointers[i] = each.data_ptr()
    _for_parameters("prepare", shape, U.device)(
        -(-U.numel() // (8 * PARAMETER_THREADS)),
        PARAMETER_THREADS,
        [table, U, U_back, b, int(wide), int(wide_biases)],
    )
    return U, U_back, b


def finished(
    sums: Tensor, shape: Shape, dtype: torch.dtype, bias_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """dU (L, d, d) and db (L, d) from what ``sum_in_parts`` gives; float32 where not bfloat16."""
    L, parts, d, _ = sums.shape
    wide, wide_biases = (each != torch.bfloat16 for each in (dtype, bias_dtype))
    dU = sums.new_empty((L, d, d), dtype=_kernels_dtype(wide))
    db = sums.new_empty((L, d), dtype=_kernels_dtype(wide_biases))
    _for_parameters("finish", shape, sums.device)(
        -(-L * d * (d // 4 + 1) // PARAMETER_THREADS),
        PARAMETER_THREADS,
        [sums, dU, db, parts, int(wide), int(wide_biases)],
    )
    return dU, db


def _readable(parameters: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """Parameters of one kind as the kernels read them, and whether that is as float32."""
    wide = any(each.dtype != torch.bfloat16 for each in parameters)
    return [each.to(_kernels_dtype(wide)).contiguous() for each in parameters], wide


def _kernels_dtype(wide: bool) -> torch.dtype:
    return torch.float32 if wide else torch.bfloat16


def _kept(like: Tensor, shape: Shape, maps: int) -> Tensor:
    """What backward needs of the products: under relu a bit whether each is positive."""
    V, d = like.shape
    if shape.options.activation == ACTIVATION_CODES["relu"]:
        return like.new_empty((maps, V, d // 8), dtype=torch.uint8)
    needed = maps if shape.options.activation != ACTIVATION_CODES["none"] else 0
    return like.new_empty((needed, V, d), dtype=torch.bfloat16)


def _vectors(rows: Tensor) -> Tensor:
    """In one piece, at an address from which several entries can be read at a time."""
    whole = rows.contiguous()
    return whole if whole.data_ptr() % 16 == 0 else whole.clone()


def _tiles(labels: int) -> int:
    """Blocks' worth of labels; whole clusters of them."""
    return -(-labels // (ROWS * CLUSTER)) * CLUSTER


def _blocks(device: torch.device, tiles: int) -> int:
    """One for each multiprocessor; fewer while a recurrence runs, so that both fit.

    Whole clusters, and at least one: a small part of a GPU may have room for none next to it.
    """
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    share = processors if awaited_by() is None else processors // 3
    return min(tiles, max(share // CLUSTER, 1) * CLUSTER)
