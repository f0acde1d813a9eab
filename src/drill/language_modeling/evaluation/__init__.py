"""Judging a trained language model.

perplexity           of a text, the state carried from its first token to its last
frequency_bands      loss by frequency of words
calibration          how often the likeliest token is right, against its probability
dynamic_evaluation   weights adapt to the text being read
gradient_statistics  of the training text, which dynamic evaluation needs
cache_pointer        recent words are likelier
grid_search          settings of these two, chosen on the validation text
held_out             scores of words that training has not seen
"""
