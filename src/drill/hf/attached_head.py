"""The module that stands in the place of a model's ``lm_head``."""

import copy
import itertools
import sys
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.distributed.fsdp import FSDPModule

from drill.kernels.loss.checks import IGNORE_INDEX, check_targets
from drill.kernels.loss.nll import DEFAULT_MEMORY
from drill.kernels.runtime.dispatch import autocast_on
from drill.layers.base import MatrixLayer
from drill.layers.label_cache import LabelCache
from drill.layers.losses import LossOptions, head_nll
from drill.layers.wrappers.base import blockwise_nll


class AttachedHead(nn.Module):
    """An output layer: ``head(hidden)`` has its logits, ``head(hidden, targets)`` its loss.

    What makes ``weight``, a call or the submodules mean something else, who sets it, and why:

        shared     by install_head, for good, where the layer encodes the model's input embedding:
                   that module is no submodule here. So a checkpoint has it once, and FSDP2, which
                   takes no parameter in two groups, sees it once.
        captured   by fused_loss, for one forward of the model: a call only adds its hidden states
                   to this list and returns logits of no position, so that what the model does with
                   them costs nothing.
        resizing   by resize_token_embeddings: ``weight`` is the embedding's Parameter, which
                   transformers asks for requires_grad.
        _awaits_sharding
                   by accelerate, until FSDP2 has sharded the model: ``weight`` is the embedding's
                   Parameter, too. By that identity accelerate sees that embedding and head must be
                   in one group.
        number     by __init__ and every copy: by it compiled graphs know the head.
    """

    captured: list[Tensor] | None = None
    resizing = False

    def __init__(self, layer: Any, shared: bool) -> None:
        super().__init__()
        self._register()
        self.layer = layer  # an OutputLayer
        self.shared = shared
        if shared:
            embedding = self.matrix._modules.pop("embedding")
            vars(self.matrix)["embedding"] = embedding

    @property
    def matrix(self) -> MatrixLayer:
        """The layer, or the matrix layer that it wraps."""
        return cast(MatrixLayer, self.layer.matrix)

    def share(self, embedding: nn.Module) -> None:
        """Encode the rows of this embedding, the one that the model has now."""
        layer = self.matrix
        if self.shared and vars(layer)["embedding"] is not embedding:
            vars(layer)["embedding"] = embedding
        if not isinstance(layer.embedding, nn.Embedding):
            raise TypeError(
                f"the output layer encodes the rows of an embedding, which is now a "
                f"{type(layer.embedding).__name__}; leave the embedding out of PEFT's "
                "target_modules and modules_to_save (or attach with tie=False) and out of what "
                "FSDP wraps"
            )
        if layer.bias is not None and len(layer.bias) != layer.vocabulary_size:
            self.layer.resize(layer.vocabulary_size)

    def check_rows(self) -> None:
        """Encode the labels again if the sum of any row of a parameter has changed."""
        for part in self.layer.modules():
            for cache in vars(part).values():
                if isinstance(cache, LabelCache):
                    cache.check(rows=True)

    @property
    def weight(self) -> Tensor:
        """The encoded labels (V, k), for losses that read ``lm_head.weight``.

        A layer that does not fold, such as a mixture, has none: the loss would be another one.
        """
        if self.resizing or _awaits_sharding(self):
            return self.matrix.label_weight
        return self.layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.layer.bias

    def __call__(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.captured is None:
            return super().__call__(hidden, *args, **kwargs)
        # Not in forward: hooks, such as those of FSDP, expect one call.
        self.captured.append(hidden)
        return hidden.new_empty((*hidden.shape[:-2], 0, self.layer.vocabulary_size))

    def forward(
        self,
        hidden: Tensor,  # (..., d_h)
        targets: Tensor | None = None,  # (...)
        *,
        label_smoothing: float = 0.0,
        memory: int = DEFAULT_MEMORY,
        softcap: float | None = None,
        logit_bias: Tensor | None = None,  # (V,)
    ) -> Tensor:
        """Logits (..., V); with ``targets`` the sum of the losses of ``softcap(logits) + bias``."""
        layer = self.layer
        if hasattr(layer.label_weight, "device_mesh"):
            raise RuntimeError(
                "the embedding is sharded where the output layer encodes its rows; with FSDP2 put "
                "both into one group, as fully_shard([norm, embedding, head]) and accelerate do; "
                "for tensor parallelism load a model that has the layer already"
            )
        if targets is None:
            if torch.compiler.is_compiling() and self._reuses_labels(hidden):
                return compiled_logits(hidden, self.number, self.read_parameters())
            return layer.logits(hidden)
        on_cpu = hidden.device.type == "cpu"  # elsewhere the check waits for the device
        options = LossOptions("sum", IGNORE_INDEX, label_smoothing, "auto", memory, on_cpu)
        if not isinstance(layer, MatrixLayer):
            hidden, targets = hidden.flatten(0, -2), targets.flatten()  # a dropout mask per token
            return layer.nll(hidden, targets, *options)
        check_targets(hidden, targets, layer.vocabulary_size, IGNORE_INDEX, on_cpu)
        context, weight = layer.context(hidden), layer.weight
        if softcap is None:
            bias: Tensor | None = layer.bias
            if logit_bias is not None:
                bias = logit_bias if bias is None else bias + logit_bias
            return head_nll(context, weight, targets, bias, options)

        def capped(inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:  # (rows, V)
            logits = softcap * torch.tanh(F.linear(inputs[0], weight, layer.bias) / softcap)
            return logits.float() if logit_bias is None else logits.float() + logit_bias

        return blockwise_nll(capped, (context,), weight, targets, options, copies=4).sum()

    def read_parameters(self) -> list[Tensor]:
        return [self.layer.label_weight, *self.layer.parameters()]

    def _reuses_labels(self, hidden: Tensor) -> bool:
        """Whether a compiled graph should read cached labels, rather than encode them each time."""
        if torch.is_grad_enabled() or self.training or torch.compiler.is_exporting():
            return False
        # Under autocast, and for layers with scores of another dtype, the operator cannot say its
        # own dtype beforehand.
        return isinstance(self.layer, MatrixLayer) and not autocast_on(hidden.device)

    def _register(self) -> None:
        self.number = next(_numbers)
        _heads[self.number] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register()  # a copy has its own number

    def __deepcopy__(self, memo: dict[int, Any]) -> "AttachedHead":
        # A copy of the model has its own embedding by now; a copy of the head alone (PEFT) shares.
        if self.shared:
            embedding = vars(self.matrix)["embedding"]
            memo.setdefault(id(embedding), embedding)
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(vars(self), memo))
        return new


_numbers = itertools.count()
_heads: WeakValueDictionary[int, AttachedHead] = WeakValueDictionary()


@library.custom_op(
    "drill::head_logits",
    mutates_args=(),
    tags=(torch.Tag.cudagraph_unsafe,),  # it looks for changes, and may encode
)
def compiled_logits(hidden: Tensor, number: int, parameters: list[Tensor]) -> Tensor:
    """The logits of a head that a compiled graph knows by its number.

    So it finds the cached labels when it runs; inside a graph they are encoded at every call.
    """
    head = _heads[number]
    pairs = zip(head.read_parameters(), parameters, strict=True)
    if any(current.data_ptr() != traced.data_ptr() for current, traced in pairs):
        raise RuntimeError(
            "a compiled function changes parameters of the output layer and reads its logits; "
            "change them outside of it"
        )
    return cast(Tensor, head.layer.logits(hidden))


@compiled_logits.register_fake
def _(hidden, number, parameters):  # type: ignore[no-untyped-def]
    return hidden.new_empty((*hidden.shape[:-1], _heads[number].layer.vocabulary_size))


def _awaits_sharding(module: nn.Module) -> bool:
    accelerate = sys.modules.get("accelerate.state")
    state = {} if accelerate is None else accelerate.AcceleratorState._shared_state
    if state.get("distributed_type") != "FSDP" or isinstance(module, FSDPModule):
        return False
    return bool(state["fsdp_plugin"].fsdp_version == 2)
