"""The evidence of docs/verdict.md: federations whose truth is known, hospitals, and other tables."""
