"""The leaderboard: all methods on all kinds of federations, with equal budgets and equal tuning."""
