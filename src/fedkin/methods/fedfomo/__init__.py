"""FedFomo: first-order model optimization (Zhang et al. 2021)."""
