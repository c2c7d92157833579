"""The engine against the loop that a user would otherwise write, in one run."""
