"""Judging a trained language model: perplexity, dynamic evaluation, cache, calibration."""
