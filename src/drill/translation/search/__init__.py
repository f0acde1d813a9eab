"""Beam search, greedy search, sampling."""
