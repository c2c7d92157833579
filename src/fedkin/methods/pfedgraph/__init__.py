"""pFedGraph: a collaboration graph that is inferred (Ye et al. 2023)."""
