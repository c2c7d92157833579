"""Jobs of a real federation: what a file at the centre says is to be done with the nodes."""
