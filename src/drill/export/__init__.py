"""Trained models in the file formats of other programs."""

from drill.export.marian import NotExportable, export_marian, marian_weights

__all__ = ["NotExportable", "export_marian", "marian_weights"]
