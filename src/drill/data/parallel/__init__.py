"""Parallel text: corpora, pairs, batches of pairs, words for scores."""
