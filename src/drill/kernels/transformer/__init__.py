"""Fused passes between the products of a Transformer."""
