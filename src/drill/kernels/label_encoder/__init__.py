"""The label encoder of the deep residual layer."""
