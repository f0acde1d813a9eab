"""What both tasks stand on: loop, state, options, run folder, optimisers."""
