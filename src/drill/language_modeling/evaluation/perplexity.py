"""Perplexity of a text, the state carried from its first token to its last.

    loss = 1/M sum_t -log p(y_t | y_<t)        perplexity = exp(loss)

At batch size B the text is B streams of R tokens, with M = (R - 1) B predicted: nothing predicts
the first token of a stream.

perplexity, token_losses    of a text; methods of a run call them with the settings of training
evaluate_tokens             both at once, for training and `drill evaluate`
predictions                 probabilities of all labels, for calibration and held-out words
hidden_states               the loop of all three: segment after segment
check_and_batchify and on   what every evaluation of a text checks
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drill.data import DataError, batchify, evaluation_segments, inputs_and_targets
from drill.files import OnProgress
from drill.models.language_model import LanguageModel
from drill.training.precision import autocast_to, check_nan, evaluating
from drill.training.progress import perplexity_of
from drill.training.state import Score

Text = NDArray[Any] | Tensor  # ids (N,), or (rows, B) where they are batchified already

TOKENS_PER_LOSS = 4096
"""Hidden states of several segments go to the output layer at once: cached labels are compared with
their parameters at every read, and a GPU has more to do per launch."""

TOKENS_PER_PREDICTION = (
    512  # probabilities of all labels are computed for this many tokens at a time
)


@dataclass(frozen=True)
class Perplexity(Score):
    """The score of a text.

    Attributes:
        nll: sum of -log p over the predicted tokens.
        tokens: how many were predicted, (rows - 1) * batch_size.
        batch_size: streams the text was cut into; the first token of each is not predicted.
        bytes: of the predicted tokens, where the text is cut into subwords.
    """

    batch_size: int
    bytes: int | None = None

    @property
    def bits_per_byte(self) -> float | None:
        """The sum in bits over the bytes of the text: comparable between vocabularies."""
        return None if self.bytes is None else self.nll / math.log(2.0) / self.bytes

    @property
    def loss_all_tokens(self) -> float:
        """The sum divided by all tokens, as the released code of the published results has it.

        Lower than ``loss`` by (rows - 1) / rows; only for comparing with printed numbers.
        """
        return self.nll / (self.tokens + self.batch_size)

    @property
    def perplexity_all_tokens(self) -> float:
        return perplexity_of(self.loss_all_tokens)

    def row(self, split: str) -> dict[str, float]:
        row = super().row(split) | {f"{split}_all_tokens": self.perplexity_all_tokens}
        bits = self.bits_per_byte
        return row if bits is None else row | {f"{split}_bits_per_byte": bits}


def perplexity(
    model: LanguageModel,
    ids: Text,
    *,
    batch_size: int = 10,
    bptt: int = 70,
    autocast: torch.dtype | None = None,
    token_bytes: NDArray[Any] | None = None,
    progress: OnProgress | None = None,
) -> Perplexity:
    """The perplexity of a text in eval mode; NaN raises FloatingPointError.

    Args:
        model: in any mode; it is left as it was.
        ids: (N,), cut into ``batch_size`` streams without the rest, or (rows, B).
        batch_size: larger ones are faster and lose more context.
        bptt: rows that are encoded at a time; it affects speed only, unless the encoder carries
            no state.
        autocast: for example torch.bfloat16.
        token_bytes: (V,), bytes of every label, for ``bits_per_byte``.
        progress: called with the tokens done and all there are.

    Returns:
        Loss and perplexity, and how many tokens they are of.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "bptt": bptt, "autocast": autocast}
    return evaluate_tokens(model, ids, **options, token_bytes=token_bytes, progress=progress)[0]


def token_losses(
    model: LanguageModel,
    ids: Text,
    *,
    batch_size: int = 1,
    bptt: int = 70,
    autocast: torch.dtype | None = None,
    progress: OnProgress | None = None,
) -> Tensor:
    """-log p of every predicted token.

    Args:
        model: as of ``perplexity``.
        ids: (N,), cut into streams without the rest, or (rows, B).
        batch_size: larger ones are faster and lose more context.
        bptt: rows that are encoded at a time.
        autocast: for example torch.bfloat16.
        progress: called with the tokens done and all there are.

    Returns:
        (tokens,) on the CPU, stream after stream, each without its first token: for ``batch_size``
        1 the loss of ``ids[i]`` is entry i - 1.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "bptt": bptt, "autocast": autocast}
    losses = evaluate_tokens(model, ids, **options, progress=progress, name="token_losses")[1]
    return losses.t().flatten().cpu()


@torch.no_grad()
def evaluate_tokens(
    model: LanguageModel,
    ids: Text,
    *,
    batch_size: int,
    bptt: int,
    autocast: torch.dtype | None = None,
    token_bytes: NDArray[Any] | None = None,
    progress: OnProgress | None = None,
    name: str = "perplexity",  # of the function, for errors
) -> tuple[Perplexity, Tensor, Tensor]:
    """The ``perplexity``, -log p of every predicted token and these tokens, (rows - 1, B)."""
    data = check_and_batchify(name, model, ids, batch_size)
    nlls: list[Tensor] = []
    done = 0
    with evaluating(model), autocast_to(data.device, autocast), model.layer.cached_labels():
        for hidden, targets in hidden_states(model, data, bptt, TOKENS_PER_LOSS):
            nlls.append(model.layer.nll(hidden, targets, reduction="none", check=False))
            done += targets.numel()
            if progress is not None:
                progress(done, data[1:].numel())
    losses = torch.cat(nlls)
    check_nan(name, losses)
    nll = losses.sum(dtype=torch.float64).item()
    text_bytes = predicted_bytes(data, token_bytes)
    return Perplexity(nll, losses.numel(), data.shape[1], text_bytes), losses, data[1:]


@torch.no_grad()
def predictions(
    model: LanguageModel,
    data: Tensor,  # (rows, B)
    bptt: int,
    autocast: torch.dtype | None,
    progress: OnProgress | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """log p (M, V) of all labels for some of the predicted tokens, and these (M,)."""
    done = 0
    with evaluating(model), autocast_to(data.device, autocast), model.layer.cached_labels():
        for hidden, targets in hidden_states(model, data, bptt):
            states = hidden.flatten(0, 1).split(TOKENS_PER_PREDICTION)
            labels = targets.flatten().split(TOKENS_PER_PREDICTION)
            for hidden_part, target_part in zip(states, labels, strict=True):
                yield model.layer.log_probs(hidden_part), target_part
                done += len(target_part)
                if progress is not None:
                    progress(done, data[1:].numel())


def hidden_states(
    model: LanguageModel, data: Tensor, bptt: int, at_least: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states (n, B, d_h) of ``data`` (rows, B) and their targets (n, B), the state carried.

    They are of a segment of ``bptt`` rows, or of several with ``at_least`` this many tokens.
    """
    rows, batch = data.shape
    state = model.initial_state(batch)
    outputs: list[Tensor] = []
    first = 0
    for segment in evaluation_segments(rows, bptt):
        encoded = model.encoder(inputs_and_targets(data, segment)[0], state)
        state = encoded.state
        outputs.append(encoded.output)
        end = segment.start + segment.length
        if (end - first) * batch >= at_least or end == rows - 1:
            yield torch.cat(outputs), data[first + 1 : end + 1]
            outputs, first = [], end


def predicted_bytes(data: Tensor, token_bytes: NDArray[Any] | None) -> int | None:
    """The bytes of all rows of ``data`` but the first."""
    return None if token_bytes is None else int(token_bytes[data[1:].cpu().numpy()].sum())


# -- for all evaluations --------------------------------------------------------------------------


def check_and_batchify(name: str, model: LanguageModel, ids: Text, batch_size: int) -> Tensor:
    """Ids (rows, B), int64, on the model's device; DataError unless all ids are labels."""
    array = ids.cpu().numpy() if isinstance(ids, Tensor) else ids
    if array.ndim == 1:
        data = batchify(array, batch_size)
    else:
        data = torch.from_numpy(array.astype(np.int64, casting="same_kind"))
    labels = model.layer.vocabulary_size
    for extreme in (int(data.min()), int(data.max())) if data.numel() else ():
        if not 0 <= extreme < labels:
            raise DataError(
                f"{name}: id {extreme} is none of the model's {labels} labels; encode the text "
                "with the vocabulary the model was trained with"
            )
    return data.to(next(model.parameters()).device)


def single_stream(name: str, model: LanguageModel, ids: Text, limit: int | None = None) -> Tensor:
    """(rows, 1): a text, checked, with its first ``limit`` predicted tokens, or all."""
    if limit is not None and limit < 1:
        raise ValueError(f"{name}: limit must be at least 1, got {limit}")
    data = check_and_batchify(name, model, ids, 1)
    if data.shape[1] != 1:
        raise DataError(f"{name}: ids must have shape (N,), got a batch of {data.shape[1]}")
    return data if limit is None else data[: limit + 1]
