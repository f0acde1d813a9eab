"""Monolingual text: corpora, vocabulary, batches."""
