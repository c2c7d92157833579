"""The version of fedkin."""

__version__ = "0.1.0"
