"""Projections, linear solvers and scores: numerical tools that know nothing of federations."""
