"""Clipping, SGD and averaging in two launches."""
