"""The paper's experiments and theory, repeated with fedkin. Not part of the installed package."""
