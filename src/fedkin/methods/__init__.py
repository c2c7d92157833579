"""What the CENTER does."""
