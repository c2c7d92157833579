"""Memory for one gradient after the other."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`, from its `malloc.h`."""

KEPT_BYTES = 512 * 2**20
LARGEST_KEPT_BLOCK = 32 * 2**20
"""The largest that glibc accepts: half of a thread's heap."""


def keep_freed_memory() -> bool:
    """Let this process keep up to 512 MB that it has freed, and tell whether that could be arranged.

    glibc gives freed memory back to the system, which hands it out again page by page, as zeros. Where every
    gradient allocates some megabytes, that takes a fifth of the time. Nothing is changed if the user has
    set glibc's allocator up by the environment, or on systems without glibc.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = (MMAP_THRESHOLD, LARGEST_KEPT_BLOCK), (TRIM_THRESHOLD, KEPT_BYTES)
    accepted = [mallopt(name, value) for name, value in settings]
    return all(accepted)
