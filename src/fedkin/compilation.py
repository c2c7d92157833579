"""Compiled code: made in parallel, kept in memory, and kept on disk for later processes.

Importing this module changes nothing. A program that wants to keep compiled code on disk calls
`keep_compiled_code`; a process that such a program starts calls `keep_compiled_code_like_parent`.
"""

import hashlib
import logging
import os
import pickle
import platform
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

logger = logging.getLogger(__name__)

COMPILED: dict[Any, jax.stages.Compiled] = {}
"""The compiled code of this process, by function and by the shapes and types of the arguments."""

SINGLE_THREADED: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
"""The compiler option for code that stays in the thread that calls it."""

DIRECTORY_VARIABLE = "FEDKIN_COMPILED"
"""The environment variable that tells child processes where compiled code is kept."""

UNUSED_DAYS = 30
"""Code on disk is deleted after this many days without use."""


@dataclass(frozen=True)
class CodeDirectory:
    """Where code is kept, and a digest of the sources that this process started with."""

    path: Path
    sources: str


_directory: CodeDirectory | None = None
_making = threading.Lock()


def keep_compiled_code(directory: Path) -> None:
    """Keep compiled code in a directory, for this process, its children and later processes.

    This configures the whole process, including JAX. It is meant for programs such as fedkin's
    command line, not for libraries. Files in the directory are loaded as code, by fedkin and by JAX. So
    nothing is kept in a directory that others can write to or put another in the place of, and a warning says
    so; nor, without one, in a directory that this process cannot write to.
    """
    global _directory
    if _directory is not None and _directory.path == directory:
        return
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        return
    if (place := open_to_others(directory)) is not None:
        logger.warning(
            "compiled code is not kept in %s, because others can write to %s: chmod go-w %s",
            directory,
            place,
            place,
        )
        return
    _directory = CodeDirectory(directory, _sources())
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    settings = {
        "jax_compilation_cache_dir": str(directory),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # reading a file is always faster
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    # A cache that cannot be used does not concern the user.
    logging.getLogger("jax._src.compilation_cache").setLevel(logging.ERROR)
    logging.getLogger("jax._src.compiler").setLevel(logging.ERROR)


def keep_compiled_code_like_parent() -> None:
    """Keep compiled code where the parent process keeps it, if it does."""
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        keep_compiled_code(Path(directory))


def kept_code() -> Path | None:
    """Return the directory where this process may keep code of any kind, or None."""
    if _directory is None or open_to_others(_directory.path) is not None:
        return None
    return _directory.path


def _sources() -> str:
    """Return a digest of fedkin's sources, or an empty text if there are none."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (found := sorted(package.rglob("*.py"))):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest() if found else ""


@dataclass(frozen=True)
class Call:
    """A function with example arguments: the code works for all arguments of the same shapes."""

    function: partial
    arguments: tuple
    lasting: bool
    """Whether all of the function is fedkin's own. Then its name and settings say what it computes, in
    other processes too, and the code can be found without tracing. JAX's own cache is keyed by the
    traced code, and tracing takes longer than reading a file."""
    single_threaded: bool = True
    """Whether the code stays in the thread that calls it."""


def compile_side_by_side(calls: Sequence[Call]) -> list[Callable]:
    """Return compiled code for some calls: from memory, from disk, or compiled, one thread per call.

    Tracing happens in the calling thread, because JAX settings such as 64 bits do not reach others.
    """
    keys = [_key(call) for call in calls]
    if any(key not in COMPILED for key in keys):  # true only for the first calls
        with _making:
            _get_missing(dict(zip(keys, calls, strict=True)))
    return [COMPILED[key] for key in keys]


def _get_missing(calls: dict[Any, Call]) -> None:
    missing = {key: call for key, call in calls.items() if key not in COMPILED}
    files = {key: _file(key) if call.lasting else None for key, call in missing.items()}
    for key, file in files.items():
        if (code := _load(file)) is not None:
            COMPILED[key] = code
            del missing[key]
    if not missing:
        return
    kept_here = any(files[key] for key in missing)
    with (
        _without_jax_cache() if kept_here else nullcontext(),
        ThreadPoolExecutor(len(missing)) as threads,
    ):
        begun = {
            key: threads.submit(
                jax.jit(call.function).lower(*call.arguments).compile,
                SINGLE_THREADED if call.single_threaded else None,
            )
            for key, call in missing.items()
        }
    for key, compiling in begun.items():
        COMPILED[key] = compiling.result()
        _save(files[key], COMPILED[key])


@contextmanager
def _without_jax_cache() -> Iterator[None]:
    """Compile even what JAX has in its cache: XLA cannot save code that it has loaded."""
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX reads the setting once, after this
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def _key(call: Call) -> Any:
    assert not call.function.keywords, "only positional arguments are part of the key"
    leaves, structure = jax.tree.flatten(call.arguments)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    settings = (call.single_threaded, *_jax_settings())
    return call.function.func, call.function.args, structure, shapes, settings


def _jax_settings() -> tuple:
    """Return the JAX settings that affect the code and may change between calls."""
    names = (
        "enable_x64",
        "default_matmul_precision",
        "default_prng_impl",
        "threefry_partitionable",
        "numpy_dtype_promotion",
        "debug_nans",
        "debug_infs",
    )
    return tuple(getattr(jax.config, f"jax_{name}") for name in names)


def _file(key: Any) -> Path | None:
    """Return the file for some code, or None if it is not kept.

    fedkin keeps code for a single CPU device only. Elsewhere JAX's own cache has to do.
    """
    if _directory is None or not _directory.sources or open_to_others(_directory.path) is not None:
        return None
    cache_enabled = getattr(jax.config, "jax_enable_compilation_cache")  # noqa: B009 - not typed
    if not cache_enabled or jax.default_backend() != "cpu" or jax.device_count() != 1:
        return None
    function, *rest = key
    content = repr((function.__qualname__, rest, _directory.sources, _surroundings()))
    return _directory.path / f"fedkin-{hashlib.sha256(content.encode()).hexdigest()}.code"


def open_to_others(directory: Path) -> Path | None:
    """Return the directory, this or one above it, through which others could change what it holds; or None.

    In a directory above it that is sticky, such as /tmp, others can write but not replace what is the user's.
    """
    if not hasattr(os, "getuid"):
        return None
    user = os.getuid()
    # Links on the way are followed by whoever opens the directory: both ways to it must be safe.
    for path in dict.fromkeys([directory.absolute(), directory.resolve()]):
        for place in (path, *path.parents):
            try:
                found, link = place.stat(), place.lstat()
            except OSError:
                return place
            others = found.st_mode & (0o002 if _is_own_group(found.st_gid) else 0o022)
            if place == path:
                safe = found.st_uid == user and not others
            else:
                safe = found.st_uid in (0, user) and (
                    not others or bool(found.st_mode & stat.S_ISVTX)
                )
            if not safe or link.st_uid not in (0, user):
                return place
    return None


def _is_own_group(group: int) -> bool:
    """Tell whether a group is the one of the user alone, which many systems give to each."""
    return group == os.getgid() == os.getuid()


@cache
def _surroundings() -> tuple[str, ...]:
    """Return what code depends on besides its source: libraries, their settings and the processor."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:
        processor = ""
    kinds = {line for line in processor.splitlines() if line.startswith(("flags", "model", "Feat"))}
    settings = {name: str(value) for name, value in jax.config.values.items()}
    unrelated = ("jax_compilation_cache", "jax_persistent_cache", "jax_enable_compilation_cache")
    return (
        *(f"{name} {version(name)}" for name in ("jax", "jaxlib", "optax")),
        str(SINGLE_THREADED),
        platform.machine(),
        *sorted(kinds or {platform.processor()}),
        os.environ.get("XLA_FLAGS", ""),
        *(
            f"{name} {settings[name]}"
            for name in sorted(settings)
            if not name.startswith(unrelated)
        ),
    )


def _load(file: Path | None) -> jax.stages.Compiled | None:
    """Load code from disk. Whatever is wrong with the file, the code can be compiled again."""
    if file is None or not file.exists():
        return None
    try:
        calls_lapack, kept = pickle.loads(file.read_bytes())  # noqa: S301 - the directory is the user's alone
        os.utime(file)
        if calls_lapack:
            _find_lapack()
        return serialize_executable.deserialize_and_load(*kept)
    except Exception as error:
        logger.debug("cannot use the compiled code in %s: %s", file, error)
        return None


@cache
def _find_lapack() -> None:
    """Let JAX look up LAPACK's functions, as it does when it traces something that calls them.

    Code from disk is not traced: without this it would call functions at the address zero.
    """
    jax.jit(jnp.linalg.eigvalsh).lower(jax.ShapeDtypeStruct((1, 1), float))


def _save(file: Path | None, code: jax.stages.Compiled) -> None:
    """Keep code on disk. If that fails, the next process compiles it again.

    Code is not kept if the sources have changed since they were imported: it belongs to the old ones.
    """
    if file is None or _directory is None or _directory.sources != _sources():
        return
    part = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        kept = serialize_executable.serialize(code)
        content = pickle.dumps(("lapack" in (code.as_text() or ""), kept))
        part.write_bytes(content)
        part.replace(file)
        _delete_unused(file.parent)
    except Exception as error:
        logger.debug("cannot keep compiled code in %s: %s", file, error)
        with suppress(OSError):
            part.unlink()


def _delete_unused(directory: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for file in directory.glob("fedkin-*"):
        with suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
