"""Files that are there completely or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from fedkin.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part."""
    try:
        is_directory = path.is_dir()
    except (
        OSError
    ) as error:  # a name that is too long, or a directory above that may not be entered
        raise _cannot_write(path, error) from error
    if is_directory:
        raise InputError(f"cannot write {path}: it is a directory; name a file in it")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # a directory above may be a file
            partial.unlink()
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    reason = error.strerror or error
    return InputError(f"cannot write {path}: {reason}; make room or choose another directory")
