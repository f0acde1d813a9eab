"""The negative log-likelihood of a mixture of softmaxes."""
