"""How often the studies repeat their measurements by default; quick to import, for help texts."""

LOCAL_SVRG_RUNS = 64
"""Of Local-SVRG for each curve."""

REGIME_RUNS = 40
"""Federations in each cell."""

CAP_RUNS = 100
"""Federations for each J."""

EXAMPLE_RUNS = 2000
"""Federations for each mean."""
