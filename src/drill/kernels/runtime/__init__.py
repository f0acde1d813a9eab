"""What the kernels stand on: dispatch, compilation, streams, masks."""
