"""Files that are there completely or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from fedkin.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a directory; name a file in it")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # a directory above may be a file
            partial.unlink()
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another directory"
        ) from error
