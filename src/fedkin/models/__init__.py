"""Models: parameters, outputs and losses of single points."""
