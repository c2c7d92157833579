"""FedAvg with an aggregation that some bad nodes cannot move far: median, trimmed mean, Krum."""
