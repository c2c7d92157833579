"""What the theory of the paper says, computable."""
