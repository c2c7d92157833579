"""From files and data sets to the points of every node."""
