"""From settings to layers and optimizers, and the errors of settings that do not make any."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from drill.errors import ArgumentError, DrillError, SettingsError
from drill.layers import LAYERS, LabelSource, OutputLayer
from drill.recipes.reader import NAME, Table
from drill.training.optim import OPTIMIZERS, ScheduledOptimizer
from drill.training.optim.optimizer import is_label_map
from drill.training.settings import INNER, Settings, setting_error, wraps


def build_layer(
    table: Table,
    embedding: nn.Embedding | LabelSource,
    widths: tuple[int, ...],
    counts: Callable[[], list[int]],
    where: str = "layer",
) -> OutputLayer:
    """The layer that a table describes, over hidden states of ``widths`` side by side.

    ``counts`` gives the counts of labels to layers that need them.
    """
    options = {key: value for key, value in table.items() if key not in (NAME, INNER)}
    layer_class: Any = LAYERS[table[NAME]]
    takes = inspect.signature(layer_class).parameters
    if options.get("hidden_size", widths) is None:
        options["hidden_size"] = sum(widths)
    if "widths" in takes:
        options["widths"] = widths
    if "counts" in takes and options.get("gate") != "none":
        options["counts"] = counts()
    inputs: nn.Module | LabelSource = embedding
    if wraps(layer_class):
        # A mixture projects the hidden state; other wrappers pass it on.
        projects = "hidden_size" in takes or "widths" in takes
        inner = (embedding.embedding_dim,) if projects else widths
        inputs = build_layer(table[INNER], embedding, inner, counts, f"{where}.{INNER}")
    with argument_errors(where, table):
        return layer_class(inputs, **options)


def init_bias(layer: OutputLayer, settings: Settings, counts: Callable[[], list[int]]) -> None:
    if not settings.training["unigram_bias"]:
        return
    if layer.matrix.bias is None:
        raise SettingsError("needs layer.bias; set it to false", key="training.unigram_bias")
    if not layer.matrix.bias.is_meta:
        layer.init_bias(counts())


def build_optimizer(settings: Settings) -> ScheduledOptimizer:
    options = dict(settings.optimizer)
    try:
        return OPTIMIZERS[options.pop(NAME)](**options)
    except ArgumentError as error:
        raise setting_error("optimizer", error) from None


def check_optimizer(settings: Settings, model: nn.Module) -> None:
    """Raise SettingsError for an optimizer that these settings cannot build for this model."""
    maps_differ = build_optimizer(settings).maps_differ
    if maps_differ and not any(is_label_map(name) for name, _ in model.named_parameters()):
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


@contextmanager
def model_errors(settings: Settings) -> Iterator[None]:
    """Raise what keeps a model from being built as SettingsError."""
    try:
        yield
    except DrillError:
        raise
    except ImportError as error:
        raise SettingsError(str(error)) from None
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]  # torch adds a trace in C++
        encoder, layer = settings.encoder, settings.layer
        if encoder.get("output_layers", 1) > 1:
            raise SettingsError(
                f"the layer {layer[NAME]} does not read several states ({reason}); set it to 1, "
                "or layer.name to doc",
                key="encoder.output_layers",
            ) from None
        of_encoder = getattr(error, "name", None) == "hidden_size" and "output_size" in encoder
        key = "encoder.output_size" if of_encoder else None
        fault = f"the recipe {settings.recipe} makes no model: {reason}"
        raise SettingsError(fault, key=key) from None


@contextmanager
def argument_errors(where: str, table: Table) -> Iterator[None]:
    """Raise a wrong argument under the key of its setting, if the table ``where`` has it."""
    try:
        yield
    except ArgumentError as error:
        if error.name not in table or (error.name, table[error.name]) == ("hidden_size", None):
            raise  # the hidden size is that of the encoder
        raise setting_error(where, error) from None
