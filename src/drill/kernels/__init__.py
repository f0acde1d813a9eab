"""Tensor functions, each with an implementation in plain PyTorch that it must agree with.

impl="triton" asks for the fused kernels, be they in Triton or, for Hopper GPUs, in CUDA C++.

loss           negative log-likelihood without the N x V logits in memory
mixture        the same of a mixture of softmaxes
label_encoder  the maps of the deep residual layer
lstm           LSTM layers with dropped recurrent weights
optimizer      clipping, SGD and averaging in two launches
transformer    fused residual + norm and relu + dropout
runtime        which implementation runs; CUDA compilation, streams, dropout masks
"""
