import gc
from pathlib import Path

import jax
import pytest

from fedkin import compilation
from fedkin.compilation import keep_compiled_code


def pytest_configure(config):
    # Tests, the two workers that run them and the programs they start compile much of the same code.
    keep_compiled_code(Path(config.cache.mkdir("compiled")))
    # JAX's own cache has crashed workers that had run for long, while it wrote (executable.serialize).
    jax.config.update("jax_enable_compilation_cache", False)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_code():
    """A file's code stays on disk, not in memory, of which two workers would come to fill 12 GB."""
    yield
    compilation.COMPILED.clear()
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def same_place_for_compiled_code():
    """Nodes that run in the test's process keep their code elsewhere: what comes after does not."""
    before = compilation._directory
    yield
    if before is not None:
        keep_compiled_code(before.path)
