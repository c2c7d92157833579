"""TAWT: target-aware weighted training (Chen et al. 2021)."""
