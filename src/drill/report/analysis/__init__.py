"""What trained models do: comparisons of runs, rare words, label vectors, rank."""
