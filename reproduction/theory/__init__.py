"""What the paper's theory claims, measured: the studies behind `python -m reproduction.theory`."""
