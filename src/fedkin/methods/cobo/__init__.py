"""CoBo: collaborative learning by bilevel optimization (Hashemi et al. 2024)."""
