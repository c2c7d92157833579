"""A center whose process is gone after some checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedkin.training import problem
from fedkin.training.checkpoint import save_checkpoint


class KilledError(Exception):
    """The center's process is gone."""


@contextmanager
def killed_after(checkpoints: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expect that what is done meanwhile ends after some checkpoints have been saved."""
    saved = []

    def save_and_die(*arguments):
        saved.append(save_checkpoint(*arguments))
        if len(saved) == checkpoints:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(problem, "save_checkpoint", save_and_die)
        with pytest.raises(KilledError):
            yield
