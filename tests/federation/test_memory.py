"""Freed memory is kept for the next gradient."""

import ctypes
import os
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from fedkin.federation.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [np.ones(2**20) for _ in range(5)]  # 8 MB each
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
first = faults()
kept = keep_freed_memory()
faults()
print(kept, first, faults())
"""


def page_faults(**environment):
    """Return whether memory is kept, and the page faults of the same work before and after."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    kept, before, after = done.stdout.split()
    return kept == "True", int(before), int(after)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this system has no glibc")
def test_the_system_is_not_asked_again_for_memory_that_was_freed():
    kept, before, after = page_faults()
    assert kept
    assert before > 10_000  # 800 MB in pages of 4 kB, were nothing kept
    assert after < before / 20


def test_an_allocator_that_the_user_has_set_up_is_left_alone():
    kept, before, after = page_faults(MALLOC_TRIM_THRESHOLD_="1000000")
    assert not kept
    assert after > before / 2
