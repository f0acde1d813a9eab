"""Results by word frequency."""
