"""What ONE node computes: pure functions, no communication."""
