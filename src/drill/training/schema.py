"""Checks a TOML table against a signature or dataclass: names, types, defaults."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from drill.errors import SettingsError, nearest
from drill.recipes.reader import NAME, Table

NONE = "none"
LARGEST = 1e30  # of a number: a multiple of it still fits into float32

RENAMED = {
    "start": "init_from",
    "data.maximum_size": "data.max_vocab_size",
    "data.minimum_count": "data.min_count",
    "encoder.width": "encoder.embedding_dim",
    "layer.encoder": "layer.impl",
    "layer.inner.encoder": "layer.inner.impl",
    "layer.over": "layer.inner",
    "optimizer.clip": "optimizer.max_grad_norm",
    "optimizer.epsilon": "optimizer.eps",
    "subwords.minimum_count": "subwords.min_count",
    "training.accumulate": "training.gradient_accumulation_steps",
    "training.activation": "training.ar_weight",
    "training.average": "training.average_checkpoints",
    "training.baseline": "training.validate_first",
    "training.beam": "training.beam_size",
    "training.capture": "training.cuda_graphs",
    "training.pad_to": "training.pad_to_multiple_of",
    "training.save_every": "training.checkpoint_seconds",
    "training.slowness": "training.tar_weight",
    "training.updates": "training.max_steps",
}
"""Settings of older versions and what they are called now. A recipe with an old one is an error."""

REMOVED = {
    "layer.apply_to": "output",
    "layer.center": False,
    "layer.correction": 0,
    "optimizer.average": "tail",
    "optimizer.ema_decay": 0.999,
    "optimizer.map_warmup": 0.0,
    "optimizer.map_weight_decay": NONE,
    "training.past_decode": 0.0,
}
"""Settings that older runs and ledgers have, with the values that change nothing."""

# What a run gives by itself, and what no TOML can hold.
NOT_SET = {
    "embedding", "layer", "counts", "widths",  # of layers and encoders
    "vocabulary",  # of label sources
    "source_embedding", "target_embedding", "pad", "init_embeddings",  # of the Transformer
    "lines", "progress",  # of subwords
    "splits",  # of a parallel corpus
}  # fmt: skip


class UnknownSetting(SettingsError):
    """A setting that its table does not have, and never had."""


def settable_arguments(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What may be set of a callable, with resolved annotations."""
    func: Any = call
    hints = get_type_hints(func.__init__ if isinstance(call, type) else call)
    parameters = {k: v for k, v in inspect.signature(call).parameters.items() if k not in NOT_SET}
    for name in parameters.keys() - hints:
        raise SettingsError(
            f"{func.__name__} has no annotation for its argument {name}; settings are checked by "
            "annotations, so write one"
        )
    return {name: p.replace(annotation=hints[name]) for name, p in parameters.items()}


def with_defaults(
    where: str,
    table: Table,
    call: Callable[..., Any],
    also: Iterable[str] = (),
) -> Table:
    """Check the table ``where`` and fill in the defaults of ``call``.

    Keys of ``also`` were checked before.
    """
    arguments = settable_arguments(call)
    for key, value in table.items():
        if key in also:
            continue
        if key not in arguments:
            named = f" of {table[NAME]}" if NAME in also else ""
            fault, setting = f"unknown setting{named}", f"{where}.{key}"
            if setting in RENAMED:
                raise SettingsError(fault, key=setting, hint=f"it is now {RENAMED[setting]}")
            if f"{where.removesuffix('.inner')}.{key}" in REMOVED:
                raise SettingsError(fault, key=setting, hint="this version no longer has it")
            keys = {name: f"{where}.{name}" for name in (*arguments, *also)}
            raise UnknownSetting(fault, key=setting, hint=nearest(key, keys).removeprefix("; "))
        if not fits_kind(_read_none(value, arguments[key]), arguments[key].annotation):
            raise SettingsError(
                f"must be {in_words(arguments[key].annotation)}, got {value!r}",
                key=f"{where}.{key}",
            )
    filled = {key: table[key] for key in also if key in table}
    for key, parameter in arguments.items():
        if key in table:
            value = _read_none(table[key], parameter)
        elif parameter.default is inspect.Parameter.empty:
            raise SettingsError(
                f"is missing; it must be {in_words(parameter.annotation)}", key=f"{where}.{key}"
            )
        else:
            value = parameter.default
        wants_float = float in alternatives(parameter.annotation)
        filled[key] = float(value) if wants_float and type(value) is int else value
    return filled


def with_new_names(tables: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings of an older version, as in a ledger, under the names of this one."""
    renamed = {}
    for key, value in tables.items():
        name = RENAMED.get(where + key, where + key).removeprefix(where)
        renamed[name] = with_new_names(value, f"{where}{name}.") if type(value) is dict else value
    return renamed


def without_removed(tables: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings of an older version without those of ``REMOVED`` that change nothing."""
    kept: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{where}{key}".replace(".inner.", ".")
        if name not in REMOVED or REMOVED[name] != value:
            inside = isinstance(value, Mapping)
            kept[key] = without_removed(value, f"{where}{key}.") if inside else value
    return kept


def _read_none(value: Any, parameter: inspect.Parameter) -> Any:
    """TOML has no null: the text none stands for it, where None is allowed."""
    return None if value == NONE and fits_kind(None, parameter.annotation) else value


def with_name(where: str, table: Table, choices: Mapping[str, Any], default: str) -> Table:
    """``table`` with the name of its kind first; one of ``choices``."""
    name = table.get(NAME, default)
    if not isinstance(name, str) or name not in choices:
        hint = nearest(str(name), list(choices))
        raise SettingsError(f"there is no {name!r}{hint}", key=f"{where}.{NAME}")
    return {NAME: name, **{key: value for key, value in table.items() if key != NAME}}


def alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def fits_kind(value: Any, annotation: Any) -> bool:
    """Whether a value of TOML has the annotated type."""
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            fits = value in get_args(kind) and type(value) is type(get_args(kind)[0])
        elif get_origin(kind) is not None:  # a sequence of numbers
            fits = isinstance(value, list) and all(
                fits_kind(item, get_args(kind)[0]) for item in value
            )
        elif kind is float:
            fits = type(value) in (int, float) and abs(value) <= LARGEST  # NaN fails
        elif kind is int:
            fits = type(value) is int and abs(value) < 2**63  # what torch takes
        else:
            fits = value is None if kind is types.NoneType else type(value) is kind
        if fits:
            return True
    return False


WORDS = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}


def in_words(annotation: Any) -> str:
    """An annotation for messages: ``an integer or none``."""
    words = []
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            words.append("one of " + ", ".join(map(str, get_args(kind))))
        elif get_origin(kind) is not None:
            strings = str in get_args(kind)
            words.append(f"a list of {'strings' if strings else 'integers such as [100, 1000]'}")
        else:
            words.append(WORDS.get(kind, "none"))
    return " or ".join(words)
