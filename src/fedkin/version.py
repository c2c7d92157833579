"""The version of fedkin."""

__version__ = "0.2.0"
