"""The negative log-likelihood of a mixture of softmaxes.

mixture_nll  the function: one sweep over the tokens; passes and passes_triton do its work
exp_gemm     a matrix product that writes exponentials (Hopper GPUs), and passes around it
"""
