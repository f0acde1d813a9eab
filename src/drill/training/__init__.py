"""What both tasks share: loop, state, options, run folder, optimizers."""
