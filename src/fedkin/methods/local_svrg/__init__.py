"""Local-SVRG on weighted nodes (Algorithm 1)."""
