"""From settings to layers and optimizers, and the errors of settings that do not make any."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from drill.errors import ArgumentError, SettingsError
from drill.layers import LAYERS, LabelSource, OutputLayer
from drill.models import ENCODERS
from drill.models.transformer.transformer import Transformer
from drill.recipes.reader import NAME
from drill.training.optim import OPTIMIZERS, ScheduledOptimizer
from drill.training.optim.optimizer import is_label_map
from drill.training.settings import INNER, Settings, setting_error, wraps


def build_layer(
    table: dict[str, Any],
    embedding: nn.Embedding | LabelSource,
    widths: tuple[int, ...],
    counts: Callable[[], list[int]],
) -> OutputLayer:
    """The layer that a table describes, over hidden states of ``widths`` side by side.

    ``counts`` gives the counts of labels to layers that need them.
    """
    options = {key: value for key, value in table.items() if key not in (NAME, INNER)}
    kind: Any = LAYERS[table[NAME]]
    takes = inspect.signature(kind).parameters
    if options.get("hidden_size", widths) is None:
        options["hidden_size"] = sum(widths)
    if "widths" in takes:
        options["widths"] = widths
    if "counts" in takes and options.get("gate") != "none":
        options["counts"] = counts()
    if not wraps(kind):
        return kind(embedding, **options)
    # A mixture projects the hidden state; other wrappers pass it on.
    projects = "hidden_size" in takes or "widths" in takes
    inner = (embedding.embedding_dim,) if projects else widths
    return kind(build_layer(table[INNER], embedding, inner, counts), **options)


def build_optimizer(settings: Settings) -> ScheduledOptimizer:
    options = dict(settings.optimizer)
    try:
        return OPTIMIZERS[options.pop(NAME)](**options)
    except ArgumentError as error:
        raise setting_error("optimizer", error) from None


def check_optimizer(settings: Settings, model: nn.Module) -> None:
    """Raise SettingsError for an optimizer that these settings cannot build for this model."""
    apart = build_optimizer(settings).maps_differ
    if apart and not any(is_label_map(name) for name, _ in model.named_parameters()):
        raise SettingsError(
            "is for a layer with label maps; leave it out",
            key="optimizer.map_lr_scale",
        )


def kernel_error(settings: Settings, error: ValueError) -> SettingsError:
    """The error for a kernel that this machine does not have."""
    key, owners = "encoder.impl", [kind.__name__ for kind in LAYERS.values()]
    if isinstance(error, ArgumentError) and error.owner in owners:  # a layer, alone or wrapped
        key = f"layer.{INNER}.impl" if INNER in settings.layer else "layer.impl"
    return SettingsError(f"the recipe {settings.recipe}: {error}: --set {key}=auto")


def model_error(settings: Settings, error: Exception) -> SettingsError:
    """The error of an encoder or a layer, under the key of the wrong value if it names one."""
    layer, kinds = settings.layer, {**ENCODERS, **LAYERS, "transformer": Transformer}
    tables = {"encoder": settings.encoder, "layer": layer, f"layer.{INNER}": layer.get(INNER, {})}
    several = settings.encoder.get("output_layers", 1) > 1
    if isinstance(error, ArgumentError):
        for where, table in tables.items():
            own = NAME in table and kinds[table[NAME]].__name__ == error.owner
            if own and error.name in table and table[error.name] in (error.value, None):
                if error.name != "hidden_size" or table[error.name] is not None:
                    return setting_error(where, error)
                if "output_size" in settings.encoder and not several:  # the hidden size is that
                    fault = f"must be {error.expected}, got {error.value!r}"
                    return SettingsError(fault, key="encoder.output_size")
    reason = str(error).splitlines()[0]  # torch adds a trace in C++
    if several:
        return SettingsError(
            f"the layer {layer[NAME]} does not read several states ({reason}); set it to 1, or "
            "layer.name to doc",
            key="encoder.output_layers",
        )
    return SettingsError(f"the recipe {settings.recipe} makes no model: {reason}")
