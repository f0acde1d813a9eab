"""What several kernels use.

dispatch       which implementation runs here, and why; the dtype of products
checks         errors of arguments: must be ..., got ...
autograd       errors where a backward pass is differentiated again
dropout_masks  masks, and seeds on the device
multiply_triton  half precision times float32 in one pass
padding        rows aligned for cuBLAS
nvrtc          CUDA C++ compiled at first use, cached on disk, launched
hopper         what kernels for compute capability 9 need
streams        a second and a third CUDA stream
overlap        the label encoder runs while an LSTM does
stalls         an error where a kernel gave up waiting for another block
triton_math    tanh for Triton
"""
