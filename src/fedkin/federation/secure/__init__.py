"""Sums of vectors of nodes that hide every single one (docs/security.md), without the transport."""
