"""Recipes: TOML files, one per row of a table, and how one is read on top of another.

base = "_ptb"          # the recipe this one starts from
[layer]
name = "deep-residual" # a table that names another kind starts anew, else key by key
depth = 4
"""

import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

Table = dict[str, Any]

BASE = "base"
NAME = "name"  # which encoder, layer or rule a table means


class SettingsError(ValueError):
    """Settings that cannot be used; one sentence with the key and the mend."""


def recipe_names() -> list[str]:
    """Recipes that come with the package; those behind an underscore are only started from."""
    names = (entry.name for entry in resources.files("drill.recipes").iterdir())
    return sorted(n[:-5] for n in names if n.endswith(".toml") and not n.startswith("_"))


def describe(name: str) -> str:
    """The comment a recipe begins with, as one line."""
    lines = (resources.files("drill.recipes") / f"{name}.toml").read_text("utf-8").splitlines()
    said = []
    for line in lines:
        if not line.startswith("#"):
            break
        said.append(line.lstrip("# "))
    return " ".join(said)


def read(name: str, place: Path = Path()) -> Table:
    """The tables of a recipe by name or of a ``.toml`` file, on top of those of its base."""
    if name.endswith(".toml"):
        path = place / name
        tables, place = parsed(path), path.parent
    else:
        entry = resources.files("drill.recipes") / f"{name}.toml"
        if "/" in name or not entry.is_file():
            raise SettingsError(
                f"{name}: there is no such recipe{nearest(name, recipe_names())}; a recipe of "
                "your own is a file that ends in .toml"
            )
        tables = _parsed(entry.read_bytes(), f"{name}.toml")
    base = tables.pop(BASE, None)
    tables.pop("recipe", None)  # of a file that a run has written
    return tables if base is None else merged(read(str(base), place), tables)


def parsed(path: Path) -> Table:
    """The tables of a file as they stand there."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); name a recipe or a .toml file"
        ) from None
    return _parsed(raw, str(path))


def _parsed(raw: bytes, place: str) -> Table:
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{place}: is not TOML ({error}); mend that line") from None


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """``new`` over ``old``, key by key; a table that names another kind starts anew."""
    both = dict(old)
    for key, value in new.items():
        held = both.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            same = value.get(NAME, held.get(NAME)) == held.get(NAME)
            both[key] = merged(held, value) if same else value
        else:
            both[key] = value
    return both


def change_of(text: str) -> Table:
    """``table.key=value`` as tables; the value is TOML, or a text where it is not."""
    path, sign, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not sign or not all(keys):
        raise SettingsError(f"{text!r}: a change has the form table.key=value")
    nested: Any = _value(value.strip())
    for key in reversed(keys):
        nested = {key: nested}
    return dict(nested)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known are {', '.join(known)}"
