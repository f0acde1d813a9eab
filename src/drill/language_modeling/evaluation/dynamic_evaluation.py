"""Dynamic evaluation (Krause, Kahembwe, Murray & Renals, ICML 2018): adapt to the text being read.

    theta <- theta + decay * rate * (theta0 - theta) - lr * grad / (RMS + eps)

after each segment, once its loss is counted: no token is predicted by weights that have seen it.
RMS, the root mean square of a gradient, and rate are statistics of the training text
(``gradient_statistics.py``).
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from drill.data import evaluation_segments
from drill.errors import check_value
from drill.files import OnProgress
from drill.kernels.runtime.stalls import check_stall
from drill.language_modeling.evaluation.gradient_statistics import (
    GradientReader,
    Statistics,
    checked_parameters,
    text_fingerprint,
)
from drill.language_modeling.evaluation.grid_search import GridSearch, run_grid
from drill.language_modeling.evaluation.perplexity import Perplexity, Text, single_stream
from drill.models.language_model import LanguageModel
from drill.training.precision import current_precision

LRS = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 10e-5)
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3, 1e-2)
"""The grid that AWD-LSTM was tuned with, for segments of 5 tokens; and 1e-2, because short runs on
Penn Treebank chose its largest decay."""

SEGMENTS_PER_CHECK = 200  # segments between two checks for NaN, which wait for the device


def dynamic_perplexity(
    model: LanguageModel,
    ids: Text,
    statistics: Statistics,
    *,
    lr: float = 5e-5,
    decay: float = 0.002,
    eps: float = 2e-5,
    segment_length: int = 5,
    limit: int | None = None,
    progress: OnProgress | None = None,
) -> Perplexity:
    """The perplexity of a text, read as one stream by a model that adapts to it.

    Every trained parameter adapts, without dropout. Afterwards the weights are restored bit for
    bit, also after an exception.

    Args:
        model: on the device where it is evaluated.
        ids: the text, (N,).
        statistics: from ``gradient_statistics`` of the same weights.
        lr: learning rate.
        decay: how fast weights decay to their initial values ``theta0``.
        eps: bounds the steps of parameters that rarely have a gradient.
        segment_length: tokens between two steps; scale lr and decay with it.
        limit: predict the first ``limit`` tokens only.
        progress: called with the tokens done and all there are.

    Returns:
        Loss and perplexity of all predicted tokens.
    """
    check_dynamic_settings(lr, decay, eps)
    data = single_stream("dynamic_perplexity", model, ids, limit)
    segments = list(evaluation_segments(len(data), segment_length))
    statistics.check(model)
    named = checked_parameters(model)
    parameters = list(named.values())
    start = [p.detach().clone() for p in parameters]
    rates = statistics.rates(decay)
    decays = [rates[name].to(p.device).mul(decay) for name, p in named.items()]
    lrs = [lr / (statistics.roots[name].to(p.device) + eps) for name, p in named.items()]

    total = torch.zeros((), dtype=torch.float64, device=data.device)

    def adapt(nll: Tensor, grads: list[Tensor], length: int) -> None:
        total.add_(nll.double() * length)
        torch._foreach_lerp_(parameters, start, decays)
        torch._foreach_addcmul_(parameters, grads, lrs, value=-1.0)

    read_and_adapt = GradientReader(model, parameters, data, adapt)
    try:
        with model.without_dropout(), torch.enable_grad():
            for number, segment in enumerate(segments, start=1):
                read_and_adapt(segment)
                done = segment.start + segment.length
                check = number % SEGMENTS_PER_CHECK == 0 or number == len(segments)
                if check and math.isnan(total.item()):
                    check_stall("dynamic_perplexity")
                    raise FloatingPointError(
                        f"dynamic_perplexity: the loss is NaN within the first {done} tokens: the "
                        f"weights diverged; use a smaller lr than {lr}"
                    )
                if progress is not None:
                    progress(done, len(data) - 1)
    finally:
        # Values are copied, storages stay: cuDNN reads the weights of an LSTM from one buffer.
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)
    return Perplexity(total.item(), len(data) - 1, 1)


def dynamic_search(
    model: LanguageModel,
    ids: Text,
    statistics: Statistics,
    *,
    lrs: Sequence[float] | None = None,
    decays: Sequence[float] | None = None,
    eps: float = 2e-5,
    segment_length: int = 5,
    limit: int | None = 30_000,
    file: Path | str | None = None,
    progress: OnProgress | None = None,
) -> GridSearch:
    """Every lr with every decay on a validation text; never give it the test text.

        best = dynamic_search(model, valid, statistics, file="search.json").best
        result = dynamic_perplexity(model, test, statistics, **best.settings)

    Args:
        model: as of ``dynamic_perplexity``, and so are eps and segment_length.
        ids: the validation text, (N,).
        statistics: from ``gradient_statistics`` of the same weights.
        lrs: by default the grid that AWD-LSTM was tuned with, times segment_length / 5.
        decays: as ``lrs``.
        eps: bounds the steps of parameters that rarely have a gradient.
        segment_length: tokens between two steps.
        limit: predict the first ``limit`` tokens only.
        progress: called with the tokens done and all there are.
        file: finished cells are saved here, and a restart continues. A cell is identified by
            weights, text, statistics, settings and precision.

    Returns:
        All cells of the grid; ``best`` has the settings of the lowest loss.
    """
    data = single_stream("dynamic_search", model, ids, limit)
    lrs = [rate * (segment_length / 5) for rate in LRS] if lrs is None else lrs
    decays = [decay * (segment_length / 5) for decay in DECAYS] if decays is None else decays
    points = [{"lr": lr, "decay": decay} for lr in lrs for decay in decays]
    for point in points:
        check_dynamic_settings(point["lr"], point["decay"], eps)
    statistics.check(model)
    key = (
        f"dynamic: epsilon {eps!r}, bptt {segment_length}, text {text_fingerprint(data)}, "
        f"weights {statistics.weights}, training text {statistics.text}, "
        f"precision {current_precision(data.device)}, of the statistics {statistics.precision}"
    )
    evaluate = partial(
        dynamic_perplexity,
        model,
        data,
        statistics,
        eps=eps,
        segment_length=segment_length,
    )
    return run_grid(points, evaluate, key=key, tokens=len(data) - 1, file=file, progress=progress)


def check_dynamic_settings(lr: float, decay: float, eps: float) -> None:
    """Raise ValueError for invalid settings."""
    name, least = "dynamic_perplexity", "a finite number of at least 0"
    check_value(0.0 <= lr < math.inf, f"{name}: lr", least, lr)
    check_value(0.0 <= decay < math.inf, f"{name}: decay", least, decay)
    check_value(0.0 < eps < math.inf, f"{name}: eps", "a finite number above 0", eps)
