"""One launch for all time steps of a layer (Hopper).

stack         lstm_stack() by these kernels; stack_forward and stack_backward what is around them
recurrence    one layer's launch; the kernels are forward.cu and backward.cu
layout        how weights and batches are spread over a device
pack_weights  weights on their way to the kernels and back
"""
