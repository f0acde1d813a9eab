"""A GEMM and a pointwise kernel per time step, any bfloat16 GPU."""
