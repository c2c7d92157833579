"""Linear algebra that does not know what it is used for."""
