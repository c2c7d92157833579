"""Compiled code kept on disk: the second process that needs the same code does not compile it."""

import logging
import os
from pathlib import Path

import jax


def keep_compiled_code(directory: Path) -> None:
    """Let JAX keep what it compiles in a directory, for this process, its children and those that come later.

    A setting of the whole process: meant for programs, as fedkin's own command line, not for
    libraries. A directory that cannot be written to costs a compilation and nothing else.
    """
    settings = {
        "jax_compilation_cache_dir": str(directory),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # reading a file is always faster
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # for the processes of a study, which begin anew
    # A cache that cannot be used is no news to the user.
    logging.getLogger("jax._src.compilation_cache").setLevel(logging.ERROR)
    logging.getLogger("jax._src.compiler").setLevel(logging.ERROR)
