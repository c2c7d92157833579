"""APPLE: adaptive personalized cross-silo learning (Luo and Wu 2022)."""
