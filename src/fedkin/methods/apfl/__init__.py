"""APFL: adaptive personalized federated learning (Deng et al. 2020)."""
