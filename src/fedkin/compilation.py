"""Compiled code: made side by side, kept in memory, and on disk for the processes that come later."""

import hashlib
import logging
import os
import pickle
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

logger = logging.getLogger(__name__)

COMPILED: dict[Any, jax.stages.Compiled] = {}
"""The compiled code of this process, for every function, shape and type of arguments."""

SINGLE_THREADED: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
"""The compiler's option for code that keeps to the thread it is called from."""


def keep_compiled_code(directory: Path) -> None:
    """Keep compiled code in a directory, for this process, its children and those that come later.

    A setting of the whole process: meant for programs, as fedkin's own command line, not for
    libraries. What is kept there is loaded as code: the directory must be the user's own. If it cannot
    be written to, nothing is kept there.
    """
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        return
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


@dataclass(frozen=True)
class Call:
    """A function with the arguments it is compiled for; other arguments of their shapes will do as well."""

    function: partial
    arguments: tuple
    lasting: bool
    """Whether the function is all fedkin's own, so that its name and settings tell what it computes in
    other processes too: JAX's own cache goes by the traced code, and tracing takes longer than reading."""


def compile_side_by_side(calls: Sequence[Call]) -> list[Callable]:
    """Get compiled code for some calls: from memory, from disk, or made, each in its own thread.

    Tracing is done here, because settings of JAX such as 64 bits do not reach other threads.
    """
    keys = [_key(call) for call in calls]
    missing = {key: call for key, call in zip(keys, calls, strict=True) if key not in COMPILED}
    files = {key: _file(key) if call.lasting else None for key, call in missing.items()}
    for key, file in files.items():
        if (code := _load(file)) is not None:
            COMPILED[key] = code
            del missing[key]
    if missing:  # only the first calls; no threads are begun in all later ones
        kept_here = any(files[key] for key in missing)
        with (
            _without_jax_cache() if kept_here else nullcontext(),
            ThreadPoolExecutor(len(missing)) as threads,
        ):
            begun = {
                key: threads.submit(
                    jax.jit(call.function).lower(*call.arguments).compile, SINGLE_THREADED
                )
                for key, call in missing.items()
            }
        for key, compiling in begun.items():
            COMPILED[key] = compiling.result()
            _save(files[key], COMPILED[key])
    return [COMPILED[key] for key in keys]


@contextmanager
def _without_jax_cache() -> Iterator[None]:
    """Compile even what JAX has kept: XLA cannot save code anew that it has loaded."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # the setting is looked at once, after this
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def _key(call: Call) -> Any:
    leaves, structure = jax.tree.flatten(call.arguments)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return call.function.func, call.function.args, structure, shapes


def _file(key: Any) -> Path | None:
    """Name the file for some code; None where nothing is kept."""
    directory = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 - unknown to type checkers
    if not directory:
        return None
    function, settings, structure, shapes = key
    parts = (function.__qualname__, settings, structure, shapes, _jax_settings(), _surroundings())
    return Path(directory) / f"fedkin-{hashlib.sha256(repr(parts).encode()).hexdigest()}.code"


def _jax_settings() -> tuple:
    """Return what may change the code from call to call."""
    names = ("enable_x64", "default_matmul_precision", "default_prng_impl", "debug_nans")
    return tuple(getattr(jax.config, f"jax_{name}") for name in names)


@cache
def _surroundings() -> tuple[str, ...]:
    """Return what code of this process depends on beside the function: fedkin, JAX and the processor."""
    package = Path(__file__).parent
    source = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        source.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    information = Path("/proc/cpuinfo")
    processor = information.read_text() if information.exists() else platform.processor()
    kinds = {line for line in processor.splitlines() if line.startswith(("flags", "model", "Feat"))}
    return (
        source.hexdigest(),
        jax.__version__,
        version("jaxlib"),
        jax.default_backend(),
        platform.machine(),
        *sorted(kinds or {processor}),
        os.environ.get("XLA_FLAGS", ""),
    )


def _load(file: Path | None) -> jax.stages.Compiled | None:
    """Load what is kept. Whatever is wrong with it, it can be compiled anew."""
    if file is None or not file.exists():
        return None
    try:
        kept = pickle.loads(file.read_bytes())  # noqa: S301 - as JAX's own cache, the user's own code
        return serialize_executable.deserialize_and_load(*kept)
    except Exception as error:
        logger.debug("cannot use the compiled code in %s: %s", file, error)
        return None


def _save(file: Path | None, code: jax.stages.Compiled) -> None:
    """Keep code on disk. Where that does not work, the next process compiles again."""
    if file is None:
        return
    part = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        content = pickle.dumps(serialize_executable.serialize(code))
        part.write_bytes(content)
        part.replace(file)
    except Exception as error:
        logger.debug("cannot keep compiled code in %s: %s", file, error)
        with suppress(OSError):
            part.unlink()
