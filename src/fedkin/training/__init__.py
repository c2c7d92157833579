"""From a problem to a result: the only outer loop, checkpoints, `fit`."""
