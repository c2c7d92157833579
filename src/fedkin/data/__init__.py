"""From files and data sets to the points of each node."""
