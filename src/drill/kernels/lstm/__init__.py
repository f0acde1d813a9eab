"""LSTM layers with weight drop: reference, cuDNN, stepwise graphs, persistent kernels."""
