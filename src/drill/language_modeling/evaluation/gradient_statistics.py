"""Gradient statistics over the training text, which dynamic evaluation scales its steps with.

MS_i = sqrt( mean over batches of g_i^2 )        for every parameter i
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from drill.data import DataError, Segment, evaluation_segments
from drill.files import OnProgress, atomic_write
from drill.kernels.runtime.stalls import check_stall
from drill.language_modeling.evaluation.perplexity import Text, check_and_batchify
from drill.models.encoder import map_state
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphCache, GraphCapture
from drill.training.precision import current_precision

ABOUT = "drill gradient statistics"  # in the file's metadata

BATCH_SIZE = 100  # batch size of the published settings


class StaleStatistics(ValueError):
    """Gradient statistics of another model than the one that is evaluated."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """MS of every trained parameter, and what it was gathered from.

    Attributes:
        roots: parameter name -> MS, in the parameter's shape, on the CPU.
        batches: how many gradients were averaged.
        weights: fingerprint of the model.
        text: fingerprint of the text, its batch size and segment length.
        precision: how float32 products were computed.
    """

    roots: dict[str, Tensor]
    batches: int
    weights: str
    text: str
    precision: str

    def rates(self, decay: float) -> dict[str, Tensor]:
        """min(MS / gsum, 1 / decay), gsum the mean over tensors of their mean MS.

        How strongly each weight decays to its initial value, 1 on average; the bound keeps it from
        going past that. The sum is in order of names: a file may have another order and must give
        the same bits.
        """
        gsum = torch.stack([self.roots[name].mean() for name in sorted(self.roots)]).mean()
        rates = {name: root / gsum for name, root in self.roots.items()}
        return rates if decay == 0 else {n: r.clamp_(max=1 / decay) for n, r in rates.items()}

    def check(self, model: LanguageModel) -> None:
        """Raise StaleStatistics unless they belong to ``model`` as it is now."""
        differing = sorted(self.roots.keys() ^ checked_parameters(model).keys())
        if differing or self.weights != weights_fingerprint(model):
            kind = f"parameters ({differing[0]})" if differing else "weights"
            raise StaleStatistics(
                f"the gradient statistics belong to other {kind} than this model's; gather them "
                "again with gradient_statistics"
            )

    def save(self, path: Path | str) -> None:
        """Write a safetensors file atomically."""
        about = {name: getattr(self, name) for name in ("batches", "weights", "text", "precision")}
        tensors = {name: root.contiguous() for name, root in self.roots.items()}
        atomic_write(Path(path), safetensors.torch.save(tensors, {ABOUT: json.dumps(about)}))

    @classmethod
    def load(cls, path: Path | str) -> "Statistics":
        """What ``save`` wrote, on the CPU."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about = json.loads(file.metadata()[ABOUT])
            return cls(safetensors.torch.load_file(path), **about)
        except (OSError, ValueError, TypeError, LookupError, SafetensorError) as error:
            raise DataError(
                f"{path}: no gradient statistics ({type(error).__name__}: {error}); remove it and "
                "compute them with gradient_statistics(..., file=path)"
            ) from None


def gradient_statistics(
    model: LanguageModel,
    ids: Text,
    *,
    batch_size: int = BATCH_SIZE,
    segment_length: int = 5,
    progress: OnProgress | None = None,
    file: Path | str | None = None,
) -> Statistics:
    """MS over a training text: gradients of the mean loss of each segment, no dropout.

    Parameters that are not trained have no statistics.

    Args:
        model: whose weights the statistics are of.
        ids: the training text, (N,).
        batch_size: streams that the text is cut into.
        segment_length: tokens of a segment.
        file: saved here, and loaded from here if weights, text, batch size, segment length and
            precision are the same.
        progress: called with the tokens done and all there are.

    Returns:
        Root mean squares of the gradients of every trained parameter.
    """
    data = check_and_batchify("gradient_statistics", model, ids, batch_size)
    segments = list(evaluation_segments(len(data), segment_length))
    weights, text = weights_fingerprint(model), f"{text_fingerprint(data)} in {segment_length}s"
    precision = current_precision(data.device)
    if file is not None and Path(file).is_file():
        saved = Statistics.load(file)
        if (saved.weights, saved.text, saved.precision) == (weights, text, precision):
            return saved
    parameters = checked_parameters(model)
    squares = [torch.zeros_like(p) for p in parameters.values()]

    def add(_: Tensor, grads: list[Tensor], length: int) -> None:
        torch._foreach_addcmul_(squares, grads, grads)

    read = GradientReader(model, list(parameters.values()), data, add)
    with model.without_dropout(), torch.enable_grad():
        for segment in segments:
            read(segment)
            if progress is not None:
                progress((segment.start + segment.length) * data.shape[1], data[1:].numel())
    roots = torch._foreach_sqrt(torch._foreach_div(squares, len(segments)))
    if not torch.stack([root.mean() for root in roots]).mean() > 0:  # NaN fails too
        check_stall("gradient_statistics")
        raise FloatingPointError(
            "gradient_statistics: every gradient is 0 or one is NaN; check the weights and the text"
        )
    by_name = {name: root.cpu() for name, root in zip(parameters, roots, strict=True)}
    statistics = Statistics(by_name, len(segments), weights, text, precision)
    if file is not None:
        statistics.save(file)
    return statistics


def statistics_batch_size(tokens: int, segment_length: int) -> int:
    """``BATCH_SIZE``, or less for a short text, so that each stream has a whole segment."""
    return max(1, min(BATCH_SIZE, tokens // (segment_length + 1)))


def checked_parameters(model: LanguageModel) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = {**model.trained_parameters()}
    if not parameters:
        raise ValueError("no parameter is trained; call model.requires_grad_(True)")
    for name, p in parameters.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} must be float32 or float64, got {p.dtype}; call model.float()"
            )
    return parameters


Use = Callable[[Tensor, list[Tensor], int], None]
"""Takes the mean loss of a segment, its gradients and its length; changes tensors in place."""


class GradientReader:
    """Reads segment after segment and passes the gradients of each to ``use``.

    The state is carried, ``.grad`` of the parameters is not touched. On a GPU all of it is replayed
    as CUDA graphs, one for every length, unless ``cuda_graphs`` is False or sizes in the layer
    depend on the targets. Addresses of parameters and modes of modules must not change meanwhile.
    """

    def __init__(
        self,
        model: LanguageModel,
        parameters: Sequence[Tensor],
        data: Tensor,
        use: Use,
        *,
        cuda_graphs: bool = True,
    ) -> None:
        self.model, self.parameters, self.data, self.use = model, parameters, data, use
        self.state = map_state(Tensor.clone, model.initial_state(data.shape[1]))
        self.ids = data.new_empty((0, data.shape[1]))
        self.graphs: GraphCapture | None = None
        if cuda_graphs and model.layer.static_shapes and data.is_cuda:
            self.graphs = GraphCapture(
                data.device, instead="set static_shapes = False in the layer"
            )
        self.cache: GraphCache[Callable[[], None]] = GraphCache(model)

    def __call__(self, segment: Segment) -> None:
        length = segment.length
        if len(self.ids) <= length:
            self.ids = self.data.new_empty((length + 1, self.data.shape[1]))
            self.cache.forget()  # graphs read the old ids
        self.ids[: length + 1].copy_(self.data[segment.start : segment.start + length + 1])
        if self.graphs is None:
            self._read(length)
            return
        replay = self.cache.replays.get(length)
        if replay is None and self.cache.admit(length):
            replay = self.cache.replays[length] = self.graphs.capture(lambda: self._read(length))
        if replay is None:
            self.graphs.warm_up(lambda: self._read(length))
            return
        replay()
        increment_version(self.parameters)  # which ``use`` may have changed

    def _read(self, length: int) -> None:
        inputs, targets = self.ids[:length], self.ids[1 : length + 1]
        loss = self.model.loss(
            inputs, targets, self.state, ar_weight=0.0, tar_weight=0.0, check=False
        )
        # A layer may have parameters that no token of a segment reaches: their gradient is zero.
        grads = torch.autograd.grad(loss.total, self.parameters, materialize_grads=True)
        with torch.no_grad():
            self.use(loss.nll, list(grads), length)
            for old, new in zip(self.state, loss.state, strict=True):
                torch._foreach_copy_(list(old), list(new))


# -- which weights and which text a result belongs to -----------------------------------------


def weights_fingerprint(model: nn.Module) -> str:
    """sha256 of every parameter and buffer, bit for bit, and of the settings of every module.

    Equal where models compute the same numbers in evaluation; the mode does not count.
    """
    digest = hashlib.sha256(json.dumps(_settings(model)).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"\n{name} {tensor.dtype} {text_fingerprint(tensor)}".encode())
    return digest.hexdigest()


def text_fingerprint(data: Tensor) -> str:
    """sha256 of the values and the shape of a tensor."""
    digest = hashlib.sha256(f"{tuple(data.shape)}\n".encode())
    flat = data.detach().cpu().contiguous().view(-1)
    digest.update(flat.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


def _settings(model: nn.Module) -> dict[str, list[str]]:
    """Class and plain values of every module: the weights do not show an activation."""
    plain = (bool, int, float, str, tuple)
    return {
        f"{name}: {type(module).__name__}": [
            f"{key} {value!r}"
            for key, value in vars(module).items()
            if isinstance(value, plain) and not key.startswith("_") and key != "training"
        ]
        for name, module in model.named_modules()
    }
