"""`drill play`: a local web page to try trained runs, and the curves of those in training."""
