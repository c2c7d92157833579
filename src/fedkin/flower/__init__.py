"""A federation over Flower: every node is a process, on the machine that has its data."""

from pathlib import Path


def app_directory() -> Path:
    """Return the directory of the app for `flwr run`; the app has no code."""
    return Path(__file__).parent / "app"
