"""Output layers over a matrix layer: other losses over the same labels."""
