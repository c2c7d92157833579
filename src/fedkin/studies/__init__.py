"""Running algorithms: the only outer loop, and what it records."""
