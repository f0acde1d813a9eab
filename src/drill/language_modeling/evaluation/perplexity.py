"""Perplexity of a text, the state carried from its first token to its last.

    loss = 1/M sum_t -log p(y_t | y_<t)        perplexity = exp(loss)

At batch size B the text is B streams of R tokens, with M = (R - 1) B predicted: nothing predicts
the first token of a stream.
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
from drill.kernels.runtime.stalls import check_stall
from drill.models.language_model import LanguageModel
from drill.training.precision import autocast_to, evaluating
from drill.training.progress import perplexity_of
from drill.training.state import Score

Text = NDArray[Any] | Tensor  # ids (N,), or (rows, B) where they are batchified already

TOKENS_PER_LOSS = 4096
"""Hidden states of several segments go to the output layer at once: cached labels are compared with
their parameters at every read, and a GPU has more to do per launch."""

TOKENS_PER_PREDICTION = 512  # probabilities of all labels are computed for so many tokens at a time


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
    def published_loss(self) -> float:
        """The sum divided by all tokens, as the released code of the published results has it.

        Lower than ``loss`` by (rows - 1) / rows; only for comparing with printed numbers.
        """
        return self.nll / (self.tokens + self.batch_size)

    @property
    def published_perplexity(self) -> float:
        return perplexity_of(self.published_loss)

    def row(self, split: str) -> dict[str, float]:
        row = super().row(split) | {f"{split}_published": self.published_perplexity}
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
    return reading_order(
        evaluate_tokens(model, ids, **options, progress=progress, name="token_losses")[1]
    )


def reading_order(losses: Tensor) -> Tensor:
    """(rows, B) -> (rows * B,), stream after stream, on the CPU."""
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
    rows, batch = data.shape
    found: list[Tensor] = []
    waiting: list[Tensor] = []  # hidden states whose losses are not computed yet
    done, scored = 0, 0
    with evaluating(model), autocast_to(data.device, autocast), model.layer.cached_labels():
        for output in hidden_states(model, data, bptt):
            waiting.append(output)
            done += len(output)
            if (done - scored) * batch < TOKENS_PER_LOSS and done < rows - 1:
                continue
            hidden = torch.cat(waiting)  # (done - scored, B, d_h)
            targets = data[scored + 1 : done + 1]
            found.append(model.layer.nll(hidden, targets, reduction="none", check=False))
            waiting, scored = [], done
            if progress is not None:
                progress(done * batch, (rows - 1) * batch)
    losses = torch.cat(found)
    check_nan(name, losses)
    nll = losses.sum(dtype=torch.float64).item()
    found_bytes = predicted_bytes(data, token_bytes)
    return Perplexity(nll, losses.numel(), batch, found_bytes), losses, data[1:]


def hidden_states(model: LanguageModel, data: Tensor, bptt: int) -> Iterator[Tensor]:
    """(length, B, d_h) of one segment of ``data`` (rows, B) after another, the state carried."""
    state = model.initial_state(data.shape[1])
    for segment in evaluation_segments(data.shape[0], bptt):
        encoded = model.encoder(inputs_and_targets(data, segment)[0], state)
        state = encoded.state
        yield encoded.output


@torch.no_grad()
def predictions(
    model: LanguageModel, data: Tensor, bptt: int, autocast: torch.dtype | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """log p (M, V) of all labels for some of the predicted tokens of ``data``, and these (M,)."""
    done = 0
    with evaluating(model), autocast_to(data.device, autocast), model.layer.cached_labels():
        for hidden in hidden_states(model, data, bptt):
            targets = data[done + 1 : done + 1 + len(hidden)].flatten()
            done += len(hidden)
            states = hidden.flatten(0, 1).split(TOKENS_PER_PREDICTION)
            for part, wanted in zip(states, targets.split(TOKENS_PER_PREDICTION), strict=True):
                yield model.layer.log_probs(part), wanted


def predicted_bytes(data: Tensor, token_bytes: NDArray[Any] | None) -> int | None:
    """The bytes of all rows of ``data`` but the first."""
    return None if token_bytes is None else int(token_bytes[data[1:].cpu().numpy()].sum())


# -- for all evaluations --------------------------------------------------------------------------


def check_and_batchify(name: str, model: LanguageModel, ids: Text, batch_size: int) -> Tensor:
    """Ids (rows, B), int64, on the model's device; DataError unless all ids are labels."""
    numbers = ids.cpu().numpy() if isinstance(ids, Tensor) else ids
    if numbers.ndim == 1:
        data = batchify(numbers, batch_size)
    else:
        data = torch.from_numpy(numbers.astype(np.int64, casting="same_kind"))
    labels = model.layer.vocabulary_size
    for extreme in (int(data.min()), int(data.max())):
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


def check_nan(name: str, losses: Tensor) -> None:
    """Raise FloatingPointError, or Stalled, if one of the losses is NaN."""
    wrong = int(losses.isnan().sum())
    if wrong:
        check_stall(name)
        raise FloatingPointError(
            f"{name}: the loss is NaN for {wrong} of {losses.numel()} tokens; go back to an "
            "earlier checkpoint, or evaluate in float32"
        )
