"""FedALA: adaptive local aggregation (Zhang et al. 2023)."""
