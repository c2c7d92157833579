"""A federation over Flower: nodes are processes, on machines that hold their own data."""

from pathlib import Path


def app_directory() -> Path:
    """Return the app to give to `flwr run`; it holds no code."""
    return Path(__file__).parent / "app"
