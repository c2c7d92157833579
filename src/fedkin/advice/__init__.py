"""Whether to join a federation or stay alone, and how sure that is."""
