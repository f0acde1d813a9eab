"""The negative log-likelihood of a softmax, without the N x V logits in memory.

nll            the function: checks, chooses an implementation; the reference
checks         shapes, dtypes, devices, range of the targets
head           what a loss is computed of, its options and its gradients
chunk_plan     how the logits are cut into chunks, and what is saved for backward
chunked        forward and backward over the chunks; passes and passes_triton do the work of one
token_sweep    loss and gradients in one sweep over the tokens
products       matrix products of both
compile_op     the function as an opaque operator of torch.compile
"""
