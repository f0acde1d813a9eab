"""Recipes in TOML: read, merged with their base, changed by --set."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drill.errors import DataError, SettingsError
from drill.files import decode_text, nearest_run

Table = dict[str, Any]

_FOLDER = Path(__file__).parent
BASE = "base"
NAME = "name"  # which encoder, layer or optimizer a table means


def recipe_names() -> list[str]:
    """Recipes of the package; those with a leading underscore are only bases."""
    return [name for name in _shipped() if not name.startswith("_")]


@cache
def _shipped() -> dict[str, Path]:
    """Name -> file; a recipe is found by its name in whichever sub-folder it lies."""
    return {path.stem: path for path in sorted(_FOLDER.rglob("*.toml"), key=lambda path: path.stem)}


def describe(name: str) -> str:
    """The first line of a recipe, a comment."""
    return _shipped()[name].read_text("utf-8").splitlines()[0].lstrip("# ")


def layer_name(table: Any) -> str | None:
    """The output layer in one or two words: ``deep-residual 4``, ``mixture 15 x tied``."""
    if not isinstance(table, Mapping) or not isinstance(name := table.get(NAME), str):
        return None
    sizes = (table.get(key) for key in ("depth", "experts", "samples"))
    parts = [name, *(str(size) for size in sizes if type(size) is int)]
    inner = layer_name(table.get("inner"))
    return " ".join(parts if inner is None else [*parts, "x", inner])


def read(name: str, folder: Path = Path(), under: tuple[str, ...] = ()) -> Table:
    """The tables of a recipe by name or of a ``.toml`` file, on top of those of its base.

    A file is looked for in ``folder``; ``under`` are the recipes that start from this one.
    """
    path = folder / name
    if name.endswith(".toml"):
        tables, label = parsed(path), str(path.resolve())
    elif name in _shipped():
        tables, label = _parsed(_shipped()[name].read_bytes(), f"{name}.toml"), name
    else:
        if "=" in name:
            raise SettingsError(
                f"{name}: is no recipe but a change; give each change its own --set: --set {name}"
            )
        where = f"{under[-1]}: {BASE}: " if under else ""
        near = nearest_run(path, "`drill recipes` lists recipes", recipe_names())
        raise SettingsError(
            f"{where}{name}: is neither a recipe nor a file that ends in .toml, nor the folder of "
            f"a run{near}"
        )
    if label in under:
        raise SettingsError(
            f"{name}: starts from itself ({' from '.join([*under, label])}); change its {BASE}"
        )
    base = tables.pop(BASE, None)
    if under:  # a run's file names its recipe; who starts from it is another one
        tables.pop("recipe", None)
    if base is None:
        return tables
    return merged(read(str(base), path.parent, (*under, label)), tables)


def parsed(path: Path) -> Table:
    """The tables of a file as they stand there."""
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # a path may hold what no file name can
        fault = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{path}: cannot be read ({fault}); name a .toml file") from None
    return _parsed(raw, str(path))


def _parsed(raw: bytes, origin: str) -> Table:
    try:
        return tomllib.loads(decode_text(raw, origin))
    except DataError as error:
        raise SettingsError(str(error)) from None
    except (ValueError, RecursionError) as error:  # ValueError: the text or a number
        raise SettingsError(f"{origin}: is not TOML ({error}); fix that line") from None


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """``new`` over ``old``, key by key; a table that names another kind replaces the old one."""
    both = dict(old)
    for key, value in new.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            same = value.get(NAME, before.get(NAME)) == before.get(NAME)
            both[key] = merged(before, value) if same else value
        else:
            both[key] = value
    return both


def apply_overrides(tables: Mapping[str, Any], changes: Sequence[str]) -> Table:
    """``tables`` with changes ``table.key=value``; of several for one key the last counts."""
    together: Table = {}
    for change in changes:
        _put(together, change)
    return merged(tables, together)


def _put(tables: Table, change: str) -> None:
    path, sign, value = change.partition("=")
    *outer, last = [key.strip() for key in path.split(".")]
    if not sign or not all([*outer, last]):
        raise SettingsError(f"{change!r}: a change has the form table.key=value")
    if any("\ud800" <= character <= "\udfff" for character in change):  # bytes of the command line
        raise SettingsError(f"{change!r}: is no UTF-8, so no recipe could hold it; rename the file")
    if (*outer, last) == ("recipe",):
        raise SettingsError("is the name of these settings; it cannot be changed", key="recipe")
    for key in outer:
        if not isinstance(tables.setdefault(key, {}), dict):
            raise SettingsError(f"{change!r}: another change has made {key} a value, not a table")
        tables = tables[key]
    tables[last] = _value(value.strip())


def _value(text: str) -> Any:
    """TOML, or a text where it is not."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
