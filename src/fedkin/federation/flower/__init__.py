"""A federation over Flower: nodes are processes, on machines that hold their own data."""
