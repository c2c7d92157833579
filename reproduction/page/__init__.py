"""Collects studies into small tables, and makes the page, its tables and figures from these."""
