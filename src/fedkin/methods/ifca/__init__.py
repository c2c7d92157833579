"""IFCA: iterative federated clustering (Ghosh et al. 2020)."""
