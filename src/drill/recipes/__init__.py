"""Recipes: one TOML file per row of a table; ``reader`` reads, merges and changes them."""
