"""Recipes: one TOML file per row of a table. ``reader`` reads, merges and changes them."""

from drill.errors import SettingsError
from drill.recipes.reader import (
    BASE,
    NAME,
    Measured,
    Table,
    changed,
    describe,
    measured,
    merged,
    near_ones,
    nearest,
    parsed,
    read,
    recipe_names,
    stands_alone,
)

__all__ = [
    "BASE",
    "NAME",
    "Measured",
    "SettingsError",
    "Table",
    "changed",
    "describe",
    "measured",
    "merged",
    "near_ones",
    "nearest",
    "parsed",
    "read",
    "recipe_names",
    "stands_alone",
]
