"""What the CENTRE does."""
