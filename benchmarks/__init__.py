"""The engine against the loop that a user would otherwise write. Not part of the installed package."""
