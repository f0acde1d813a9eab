"""LSTM layers with dropped recurrent weights.

lstm         lstm(), lstm_stack(): which implementation runs; the reference and cuDNN
weights      the four tensors of a layer
persistent/  one launch for all time steps of a layer (Hopper GPUs)
stepwise/    a matrix product and a kernel for each time step (any GPU with bfloat16)
"""
