"""The negative log-likelihood of a softmax, without the N x V logits in memory."""
