"""Studies of everyone's question, and their results as tables."""
