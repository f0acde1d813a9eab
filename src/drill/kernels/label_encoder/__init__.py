"""The label encoder of the deep residual layer.

encode_labels     which implementation runs; the fused ones
chain/            all maps in one launch each way (Hopper GPUs, bfloat16)
locked/           locked dropout: skips dropped columns
pointwise         cuBLAS products, one fused pass between them
dropout_bits      draws these bits (Triton)
weight_gradients  all dU in one batched product
options           the settings as kernels take them; standard dropout as bits
"""
