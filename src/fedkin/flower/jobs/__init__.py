"""Jobs of a real federation: what a file at the center says is to be done with the nodes."""
