"""Parallel text: corpora, subwords, batches of pairs."""
