"""One launch for all time steps of a layer (Hopper)."""
