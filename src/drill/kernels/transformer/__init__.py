"""Fused passes between the products of a Transformer.

autocast_linear  x W^T + b in bfloat16, its weights cast together, gradients in float32
residual_norm    a residual sum and its layer norm
relu_dropout     drop(relu(x + b))
row_tiles        what their Triton kernels share
"""
