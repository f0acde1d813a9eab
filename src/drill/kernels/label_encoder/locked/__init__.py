"""Locked dropout: dropped columns are skipped."""
