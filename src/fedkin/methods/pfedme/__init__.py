"""pFedMe (Dinh et al. 2020)."""
