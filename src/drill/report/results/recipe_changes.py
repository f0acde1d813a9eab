"""What a run has changed of the recipe that it names.

A row of the ledger says `europarl-tied`; trained with `--set optimizer.lr=5e-4` it is another
experiment, and whoever repeats it has to know.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from drill.recipes.reader import recipe_names
from drill.training.settings import recipe

OF_NO_RESULT = ("recipe", "training.seed", "training.save_every", "training.capture")
"""Told elsewhere, or without a say in what comes out."""


def recipe_changes(settings: Mapping[str, Any]) -> list[str] | None:
    """``optimizer.lr: 0.0007 -> 0.0005`` of every key, the recipe's value first.

    The recipe is that of this version of drill. None where it has none of that name, so that
    nothing but the settings themselves tells what was trained.
    """
    name = settings.get("recipe")
    if name not in recipe_names():
        return None
    named = dict(_flat(tomllib.loads(recipe(str(name)).to_toml())))
    return [
        f"{key}: {_written(named.get(key, 'none'))} -> {_written(value)}"
        for key, value in sorted(_flat(settings))
        if key not in OF_NO_RESULT and named.get(key, "none") != value
    ]


class Trained(Protocol):
    """A run folder or a row of the ledger."""

    @property
    def name(self) -> str: ...
    @property
    def changes(self) -> list[str] | None: ...


def change_notes(results: Iterable[Trained]) -> list[str]:
    """A sentence for all that have changed the same of their recipes."""
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for each in results:
        if each.changes:
            names.setdefault(tuple(each.changes), {})[each.name] = None
    return [
        f"Changed from the recipe to the run, {', '.join(runs)}: {'; '.join(changes)}."
        for changes, runs in names.items()
    ]


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
