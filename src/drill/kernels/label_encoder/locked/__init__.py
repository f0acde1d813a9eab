"""Locked dropout: dropped columns are skipped.

locked_encode      the entry point and its autograd function
gather_columns     which columns the masks keep, and the shapes of this folder
forward_triton     one kernel per map, forward; backward_triton the same backward
scatter_gradients  gradients summed back into all columns
"""
