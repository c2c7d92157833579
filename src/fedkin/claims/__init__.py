"""What the paper's theory claims, measured: the studies behind `fedkin theory`."""
