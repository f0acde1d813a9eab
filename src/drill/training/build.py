"""From settings to an output layer and an optimiser."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from drill.errors import SettingsError
from drill.layers import LAYERS, OutputLayer
from drill.recipes.reader import NAME
from drill.training.optim import OPTIMIZERS, ScheduledOptimizer
from drill.training.settings import INNER, Settings, wraps


def output_layer(
    table: dict[str, Any],
    embedding: nn.Embedding,
    hidden_size: int,
    counts: Callable[[], list[int]],
) -> OutputLayer:
    """The layer that a table describes; ``counts`` of labels are asked for where it needs them."""
    options = {key: value for key, value in table.items() if key not in (NAME, INNER)}
    kind: Any = LAYERS[table[NAME]]
    takes = inspect.signature(kind).parameters
    if options.get("hidden_size", hidden_size) is None:
        options["hidden_size"] = hidden_size
    if "counts" in takes:
        options["counts"] = counts()
    if not wraps(kind):
        return kind(embedding, **options)
    # A mixture projects what the encoder gives; others hand it on as it is.
    inner = embedding.embedding_dim if "hidden_size" in takes else hidden_size
    return kind(output_layer(table[INNER], embedding, inner, counts), **options)


def build_optimizer(settings: Settings) -> ScheduledOptimizer:
    options = dict(settings.optimizer)
    try:
        return OPTIMIZERS[options.pop(NAME)](**options)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"[optimizer]: {error}") from None
