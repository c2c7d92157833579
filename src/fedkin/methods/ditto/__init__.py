"""Ditto (Li et al. 2021)."""
