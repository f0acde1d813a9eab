"""Recipes: one TOML file per row of a table; ``reader`` finds, merges and changes them."""
