"""Settings: recipes in TOML, checked against the signatures they will call.

A table of a recipe is a set of keyword arguments: ``[layer]`` those of an output layer,
``[encoder]`` of an encoder, ``[labels]`` of ``WordFeatures``, ``[optimizer]`` of an optimizer,
``[training]`` of ``LanguageModelOptions`` and ``[data]`` of ``read_corpus``. Names, types and
defaults are those of the signatures. With ``task = "translation"``: ``[encoder]`` of
``Transformer``, ``[training]`` of ``TranslationOptions``, ``[data]`` of ``read_parallel_corpus``,
no ``[labels]``, and also ``[filters]`` of ``Filters`` and ``[subwords]`` of ``Subwords.train``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drill.data import Filters, Subwords, WordFeatures, read_corpus, read_parallel_corpus
from drill.errors import ArgumentError, SettingsError, nearest
from drill.layers import LAYERS, MatrixLayer, OutputLayer
from drill.models import ENCODERS
from drill.models.transformer.transformer import PRESETS, Transformer
from drill.recipes.reader import NAME, Table, apply_overrides, parsed, read
from drill.training.optim import OPTIMIZERS
from drill.training.options import LanguageModelOptions, TranslationOptions
from drill.training.schema import (
    NONE,
    RENAMED,
    UnknownSetting,
    fits_kind,
    settable_arguments,
    with_defaults,
    with_name,
    without_removed,
)

INNER = "inner"  # the layer that a wrapping layer wraps
INIT_FROM = "init_from"  # a run whose best weights are the first ones
TASK = "task"
ABOVE_TABLES = ("recipe", INIT_FROM, TASK)
LANGUAGE_MODEL, TRANSLATION = "language-model", "translation"

FILES_ONLY = ("training.checkpoint_seconds", "training.log_every")
"""Settings of when files are written: they do not change what is trained."""

KERNELS = ("training.cuda_graphs", "encoder.impl", "layer.impl", "layer.inner.impl")
"""Settings that select kernels: results are the same up to rounding."""

Checks = dict[str, tuple[Any, Callable[[str, Table, Any], Table]]]
"""By table: what it calls, maybe one of several by name, and what checks and fills it."""

LIMITS = ("training.epochs", "training.max_steps", "training.max_minutes")
MAY_CHANGE_ON_RESUME = (*LIMITS, *FILES_ONLY, *KERNELS)


@dataclass(frozen=True)
class Settings:
    """A resolved recipe: every key has its value."""

    recipe: str
    data: Table
    encoder: Table
    layer: Table
    optimizer: Table
    training: Table
    init_from: str | None = None
    task: str = LANGUAGE_MODEL
    labels: Table = field(default_factory=dict)  # of language models alone
    filters: Table = field(default_factory=dict)  # this and the next of translation alone
    subwords: Table = field(default_factory=dict)

    def tables(self) -> dict[str, Table]:
        return {name: getattr(self, name) for name in TASKS[self.task]}

    def to_dict(self) -> Table:
        """What ``recipe.toml`` holds; ``resolve_settings`` of it gives these settings again."""
        above = {"recipe": self.recipe}
        if self.task != LANGUAGE_MODEL:
            above[TASK] = self.task
        if self.init_from is not None:
            above[INIT_FROM] = self.init_from
        content: Table = _as_toml({**above, **self.tables()})
        return content

    def to_toml(self) -> str:
        return _toml_text(self.to_dict())

    def changed(self, **tables: Mapping[str, Any]) -> "Settings":
        """The same settings with other values, ``changed(training={"epochs": 3})``."""
        merged: dict[str, Any] = {
            name: {**table, **tables.get(name, {})} for name, table in self.tables().items()
        }
        return replace(self, **merged)

    def differences(self, other: "Settings") -> list[str]:
        """``key: mine -> theirs`` for all that two runs may not differ in."""
        mine, theirs = flatten(self.tables()), flatten(other.tables())
        mine |= {INIT_FROM: self.init_from, TASK: self.task}
        theirs |= {INIT_FROM: other.init_from, TASK: other.task}
        return [
            f"{key}: {mine.get(key)!r} -> {theirs.get(key)!r}"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key) and key not in MAY_CHANGE_ON_RESUME
        ]


def recipe(name: str, changes: str | Sequence[str] = ()) -> Settings:
    """The settings of a recipe, checked.

    Args:
        name: a name that `drill recipes` lists, or a TOML file.
        changes: ``table.key=value`` texts, such as ``layer.depth=2``; or one of them.

    Returns:
        ``Settings``, for ``drill.train``.
    """
    label = Path(name).stem if name.endswith(".toml") else name
    changes = [changes] if isinstance(changes, str) else changes
    if isinstance(changes, Mapping):
        raise SettingsError("must be a list of texts such as 'layer.depth=2'", key="changes")
    return resolve_settings({"recipe": label, **apply_overrides(read(name), changes)})


def read_settings(path: Path) -> Settings:
    return resolve_settings(parsed(path))


def resolve_settings(tables: Mapping[str, Any]) -> Settings:
    """Check every key and every value's kind, and fill in what is left out."""
    tables = without_removed(tables)
    task = tables.get(TASK, LANGUAGE_MODEL)
    if not isinstance(task, str) or task not in TASKS:
        raise SettingsError(f"there is no {task!r}{nearest(str(task), list(TASKS))}", key=TASK)
    checks = TASKS[task]
    for key, value in tables.items():
        if key in checks and not isinstance(value, dict):
            raise SettingsError(f"must be a table, got {value!r}; write [{key}]", key=key)
    for key, value in tables.items():
        if key not in (*checks, *ABOVE_TABLES):
            inside = {} if isinstance(value, dict) else _settings_by_name(tables, checks)
            known = f"known are {', '.join(checks)}"
            hint = nearest(key, {name: name for name in checks} | inside, otherwise=known)
            hint = f"; it is now {RENAMED[key]}" if key in RENAMED else hint
            raise SettingsError(f"unknown table{hint}", key=key)
    for key, meaning in (
        ("recipe", "the name of these settings"),
        (INIT_FROM, "the folder of a run"),
    ):
        if not isinstance(tables.get(key), str | None):
            raise SettingsError(f"must be {meaning}, got {tables[key]!r}", key=key)
    usual = ENCODER_DEFAULTS.get(tables.get("encoder", {}).get(NAME), {})
    tables = {**tables, **{key: {**usual[key], **tables.get(key, {})} for key in usual}}
    try:
        checked: dict[str, Any] = {
            name: check(name, tables.get(name, {}), calls)
            for name, (calls, check) in checks.items()
        }
    except UnknownSetting as error:
        name = str(error.key).rpartition(".")[2]
        if elsewhere := _settings_by_name(tables, checks).get(name):
            error.hint = f"did you mean {elsewhere}?"
        raise
    return Settings(
        tables.get("recipe") or "own", init_from=tables.get(INIT_FROM), task=task, **checked
    )


ENCODER_DEFAULTS: dict[str, dict[str, Table]] = {
    "hf": {"training": {"ar_weight": 0.0, "tar_weight": 0.0}, "optimizer": {NAME: "adamw"}}
}
"""Defaults of other tables that depend on the encoder; those of the options are for LSTMs."""


def _settings_by_name(tables: Mapping[str, Any], checks: Checks) -> dict[str, str]:
    """``epochs`` -> ``training.epochs``, ``name`` -> ``encoder.name or layer.name or ...``."""
    by_name = {name: [name] for name in ABOVE_TABLES}
    for table, (calls, check) in checks.items():
        try:
            filled = check(table, tables.get(table, {}), calls)
        except SettingsError:  # reported once this one is fixed
            continue
        for name in filled:
            by_name.setdefault(name, []).append(f"{table}.{name}")
    return {name: " or ".join(keys) for name, keys in by_name.items()}


def setting_error(where: str, error: ArgumentError) -> SettingsError:
    """The error of an argument, under the key of the setting that it was."""
    fault = f"must be {error.expected}, got {error.value!r}"
    return SettingsError(fault, key=f"{where}.{error.name}")


# -- tables and the signatures behind them --------------------------------------------------------


WIDTHS = ("embedding_dim", "hidden_size", "output_size", "joint_size", "feedforward")
MOST = dict.fromkeys((*WIDTHS, "intermediate_size"), 2**20) | {"layers": 1000, "depth": 1000}
"""Larger values take minutes to build, or overflow before the memory of a model is checked."""


def _check_sizes(where: str, table: Table) -> Table:
    for key, most in MOST.items():
        if (table.get(key) or 0) > most:
            raise SettingsError(f"must be at most {most:,}, got {table[key]}", key=f"{where}.{key}")
    return table


def _encoder(where: str, table: Table, kinds: Mapping[str, Any]) -> Table:
    table = {"embedding_dim": 400, **with_name(where, table, kinds, "awd-lstm")}
    return _filled_encoder(table, kinds[table[NAME]])


def _filled_encoder(table: Table, kind: Callable[..., Any], *also: str) -> Table:
    width = table["embedding_dim"]
    if not fits_kind(width, int) or width < 1:
        raise SettingsError(
            f"must be an integer of at least 1, got {width!r}", key="encoder.embedding_dim"
        )
    checked = (NAME, "embedding_dim", *also)
    table = with_defaults("encoder", table, kind, also=checked)
    return _check_sizes("encoder", table)


def _labels(where: str, table: Table, kind: Callable[..., Any]) -> Table:
    table = with_defaults(where, table, kind)
    if table["free_row"] and table["source"] == "table":
        raise SettingsError(
            "is for another labels.source; a table has a row for every word", key="labels.free_row"
        )
    return table


def wraps(kind: type[OutputLayer]) -> bool:
    """Whether a layer is built over another one."""
    return not issubclass(kind, MatrixLayer)


def _layer(where: str, table: Table, kinds: Mapping[str, Any]) -> Table:
    table = with_name(where, table, kinds, "tied")
    kind = kinds[table[NAME]]
    if not wraps(kind):
        if INNER in table:
            outer = ", ".join(name for name, kind in kinds.items() if wraps(kind))
            raise SettingsError(
                f"{table[NAME]} wraps no other layer; leave it out, or choose {outer}",
                key=f"{where}.{INNER}",
            )
        table = with_defaults(where, table, kind, also=(NAME,))
        return _check_sizes(where, table)
    inner = table.get(INNER, {})
    if not isinstance(inner, dict):
        key = f"{where}.{INNER}"
        raise SettingsError(f"must be a table, got {inner!r}; write [{key}]", key=key)
    inner = _layer(f"{where}.{INNER}", inner, kinds)
    if wraps(kinds[inner[NAME]]):
        raise SettingsError(
            f"must be a layer of one matrix inside {table[NAME]}, got {inner[NAME]}",
            key=f"{where}.{INNER}.{NAME}",
        )
    of_inner = inner.keys() - settable_arguments(kind).keys() - {NAME}
    for key in sorted(table.keys() & of_inner):
        hint = f"did you mean {where}.{INNER}.{key}?"
        raise SettingsError(f"unknown setting of {table[NAME]}", key=f"{where}.{key}", hint=hint)
    return {**with_defaults(where, table, kind, also=(NAME, INNER)), INNER: inner}


def _optimizer(
    where: str, table: Table, kinds: Mapping[str, Any], default: str = "nt-asgd"
) -> Table:
    table = with_name(where, table, kinds, default)
    return with_defaults(where, table, kinds[table[NAME]], also=(NAME,))


def _optimizer_of_translators(where: str, table: Table, kinds: Mapping[str, Any]) -> Table:
    filled = _optimizer(where, table, kinds, "adamw")
    if filled.get("average_from") is not None:
        raise SettingsError(
            "is for language models; a translator averages the weights of its last validations: "
            "training.average_checkpoints",
            key="optimizer.average_from",
        )
    return filled


def _checked(where: str, table: Table, kind: Callable[..., Any]) -> Table:
    """``table`` filled from a dataclass that checks its own values."""
    filled = with_defaults(where, table, kind)
    try:
        kind(**filled)
    except ArgumentError as error:
        raise setting_error(where, error) from None
    return filled


def _transformer(where: str, table: Table, kinds: Mapping[str, Any]) -> Table:
    """Check the table and replace ``preset`` by its sizes."""
    table = with_name(where, table, kinds, "transformer")
    preset = table.pop("preset", "base")
    if not isinstance(preset, str) or preset not in PRESETS:
        hint = nearest(str(preset), list(PRESETS))
        raise SettingsError(f"there is no {preset!r}{hint}", key="encoder.preset")
    table = {"shared": True, **asdict(PRESETS[preset]), **table}
    if type(table["shared"]) is not bool:
        raise SettingsError(f"must be true or false, got {table['shared']!r}", key="encoder.shared")
    return _filled_encoder(table, kinds[table[NAME]], "shared")


TASKS: dict[str, Checks] = {
    LANGUAGE_MODEL: {
        "data": (read_corpus, with_defaults),
        "encoder": (ENCODERS, _encoder),
        "labels": (WordFeatures, _labels),
        "layer": (LAYERS, _layer),
        "optimizer": (OPTIMIZERS, _optimizer),
        "training": (LanguageModelOptions, _checked),
    },
    TRANSLATION: {
        "data": (read_parallel_corpus, with_defaults),
        "filters": (Filters, _checked),
        "subwords": (Subwords.train, with_defaults),
        "encoder": ({"transformer": Transformer}, _transformer),
        "layer": (LAYERS, _layer),
        "optimizer": (OPTIMIZERS, _optimizer_of_translators),
        "training": (TranslationOptions, _checked),
    },
}
"""The tables of every task."""


# -- writing ---------------------------------------------------------------------------------------


def _as_toml(value: Any) -> Any:
    """A value as TOML can hold it: there is no None, and no tuple."""
    if isinstance(value, dict):
        return {key: _as_toml(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_toml(item) for item in value]
    return NONE if value is None else value


def _toml_text(table: Table, name: str = "") -> str:
    lines = [f"{key} = {_written(v)}" for key, v in table.items() if not isinstance(v, dict)]
    inner = {f"{name}{key}": v for key, v in table.items() if isinstance(v, dict)}
    parts = [f"[{key}]\n{_toml_text(v, f'{key}.')}" for key, v in inner.items()]
    return "\n".join([*lines, "", *parts])


def _written(value: Any) -> str:
    """TOML takes JSON's values, but no bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
