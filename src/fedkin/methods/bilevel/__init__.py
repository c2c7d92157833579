"""Learning the node weights by bilevel optimization."""
