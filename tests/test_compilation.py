"""Code on disk: what a later process finds there, and what it does if that is damaged."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, problem, reveal
from fedkin import compilation
from fedkin.compilation import keep_compiled_code
from fedkin.methods.local_svrg import node as svrg
from fedkin.models.base import WrappedModel
from fedkin.models.linear import Logistic
from fedkin.nodes import oracles


@pytest.fixture(autouse=True)
def code_is_kept():
    """Only here: see conftest.py."""
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    jax.config.update("jax_enable_compilation_cache", False)


@dataclass(frozen=True)
class OwnModel(Logistic):
    """A user's: it may compute something else in the next process."""


@pytest.fixture
def kept_code(tmp_path):
    """A directory for code, for one test."""
    keep_compiled_code(tmp_path / "compiled")
    return tmp_path / "compiled"


@pytest.fixture
def traces(monkeypatch):
    """Count how often Local-SVRG is traced."""
    found = []
    trace = svrg.svrg_round
    monkeypatch.setattr(svrg, "svrg_round", lambda *a, **k: found.append(1) or trace(*a, **k))
    return found


def as_a_new_process(monkeypatch, model=None, task=svrg.INNER_SVRG_ROUND):
    """Train a little with nothing in memory; return the nodes' points."""
    monkeypatch.setattr(compilation, "COMPILED", {})
    model = model or Logistic(classes=3, l2=0.1)
    federation = problem(model, *classification_nodes((30, 17))).federation
    numbers = {"learning_rate": 0.1, "refresh_probability": 0.3, "averaging_rate": 0.0}
    replies, _ = reveal(
        federation,
        task,
        {"point": jnp.zeros(federation.objective.size), **numbers},
        key=jax.random.key(0),
        begin=True,
        steps=5,
        reply="point",
    )
    return np.asarray(replies["point"])


def names_of_code(directory):
    return {file.name for file in directory.glob("fedkin-*")}


def test_a_later_process_traces_nothing_and_gets_the_same_bits(kept_code, traces, monkeypatch):
    first = as_a_new_process(monkeypatch)
    assert len(traces) == 1
    np.testing.assert_array_equal(as_a_new_process(monkeypatch), first)
    assert len(traces) == 1


@pytest.mark.parametrize("content", [b"", b"not code", b"\x80\x04N."])
def test_what_is_spoilt_is_compiled_and_kept_again(content, kept_code, traces, monkeypatch):
    first = as_a_new_process(monkeypatch)
    files = list(kept_code.glob("fedkin-*"))
    assert len(files) == 2  # the beginning and the round
    for file in files:
        file.write_bytes(content)
    for _ in range(2):
        np.testing.assert_array_equal(as_a_new_process(monkeypatch), first)
    assert len(traces) == 2
    assert not list(kept_code.glob("*.partial"))


def test_other_settings_find_nothing(kept_code, traces, monkeypatch):
    as_a_new_process(monkeypatch)
    with jax.default_matmul_precision("float32"):
        as_a_new_process(monkeypatch)
    assert len(traces) == 2
    with jax.enable_x64(True):
        assert as_a_new_process(monkeypatch).dtype == np.float64
    assert len(traces) == 3


def test_code_is_that_of_the_sources_a_process_was_started_from(
    kept_code, traces, monkeypatch, tmp_path
):
    as_a_new_process(monkeypatch)
    of_before = names_of_code(kept_code)
    changed = tmp_path / "fedkin"
    shutil.copytree(Path(compilation.__file__).parent, changed)
    with (changed / "models" / "linear.py").open("a") as file:
        file.write(" ")
    monkeypatch.setattr(compilation, "__file__", str(changed / "compilation.py"))
    for name in of_before:
        (kept_code / name).unlink()
    as_a_new_process(monkeypatch)  # still computes what the sources of before say
    assert len(traces) == 2
    assert not names_of_code(kept_code)
    monkeypatch.setattr(compilation, "_directory", None)
    keep_compiled_code(kept_code)
    as_a_new_process(monkeypatch)  # now as if started from the changed ones
    assert len(traces) == 3
    assert len(names_of_code(kept_code) - of_before) == 2


def test_a_directory_that_others_can_write_to_is_not_trusted(kept_code, traces, monkeypatch):
    as_a_new_process(monkeypatch)
    kept_code.chmod(0o777)
    as_a_new_process(monkeypatch)
    assert len(traces) == 2


@pytest.mark.parametrize("open_one", ["compiled", "cache", "home"])
def test_a_directory_that_others_could_change_is_not_used(open_one, tmp_path, monkeypatch, caplog):
    """Neither by fedkin nor by JAX, which loads code from it too: also if a parent is open to others."""
    directory = tmp_path / "home" / "cache" / "compiled"
    directory.mkdir(parents=True)
    (opened,) = (path for path in (directory, *directory.parents) if path.name == open_one)
    opened.chmod(0o777)
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(compilation, "_directory", None)
    monkeypatch.delenv(compilation.DIRECTORY_VARIABLE)
    keep_compiled_code(directory)
    assert compilation._directory is None
    assert jax.config.jax_compilation_cache_dir == before != str(directory)
    assert compilation.DIRECTORY_VARIABLE not in os.environ
    (record,) = caplog.records
    assert f"others can write to {opened}: chmod go-w {opened}" in record.getMessage()
    opened.chmod(0o755)
    assert compilation.open_to_others(directory) is None
    opened.chmod(0o1777)  # as /tmp is: others cannot replace what is the user's
    inside = compilation.open_to_others(directory)
    assert inside == (opened if opened == directory else None)


def test_a_link_to_a_directory_is_as_safe_as_both(tmp_path):
    for name in ("safe", "open"):
        (tmp_path / name).mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "safe" / "code").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "safe" / "code")
    assert compilation.open_to_others(tmp_path / "safe" / "code") is None
    assert compilation.open_to_others(tmp_path / "open" / "link") == tmp_path / "open"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_account_is_not_used(tmp_path):
    directory = tmp_path / "given"
    (directory / "code").mkdir(parents=True)
    os.chown(directory, 65534, 65534)
    assert compilation.open_to_others(directory / "code") == directory
    (tmp_path / "link").symlink_to(tmp_path)
    os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    assert compilation.open_to_others(tmp_path / "link" / "mine") == tmp_path / "link" / "mine"


def test_code_that_nobody_used_for_long_is_deleted(kept_code, monkeypatch):
    kept_code.joinpath("fedkin-old.code").touch()
    kept_code.joinpath("fedkin-new.code").touch()
    month_ago = time.time() - 31 * 24 * 3600
    os.utime(kept_code / "fedkin-old.code", (month_ago, month_ago))
    as_a_new_process(monkeypatch)
    assert "fedkin-old.code" not in names_of_code(kept_code)
    assert "fedkin-new.code" in names_of_code(kept_code)


@pytest.mark.parametrize(
    "model", [OwnModel(classes=3, l2=0.1), WrappedModel(nn.Dense(3))], ids=["derived", "wrapped"]
)
def test_code_of_a_model_from_elsewhere_is_not_kept(model, kept_code, traces, monkeypatch):
    for _ in range(2):
        as_a_new_process(monkeypatch, model)
    assert len(traces) == 2
    assert not list(kept_code.glob("fedkin-*"))


def test_what_the_center_computes_is_kept_too(kept_code, monkeypatch):
    """Options, and named tuples with whole numbers in them, come back from the disk as they were."""

    def compute():
        monkeypatch.setattr(compilation, "COMPILED", {})
        center = problem(Logistic(classes=3, l2=0.1), *classification_nodes((30, 17))).center
        theta = np.linspace(-1, 1, center.objective.size)
        solution = center.solve(theta, jnp.ones_like(theta), damping=0.5, iterations=4)
        line = center.search_line(theta, -theta, 0.0, 1.0)
        return center.loss_and_gradient(theta), center.hessian(theta), solution, line

    first = compute()
    traced = []
    trace = oracles.full_loss_and_gradient
    monkeypatch.setattr(
        oracles, "full_loss_and_gradient", lambda *a, **k: traced.append(1) or trace(*a, **k)
    )
    again = compute()
    assert traced == []
    assert len(list(kept_code.glob("fedkin-*"))) == 4
    jax.tree.map(np.testing.assert_array_equal, again, first)
    assert type(again[2]) is type(first[2])


def own_round(*arguments, **options):
    """A user's: it may compute something else in the next process."""
    return svrg.inner_svrg_round(*arguments, **options)


def own_begin(*arguments):
    return svrg.INNER.begin(*arguments)


@pytest.mark.parametrize(
    "change", [{"function": own_round}, {"slots": (replace(svrg.INNER, begin=own_begin),)}]
)
def test_code_of_a_task_from_elsewhere_is_not_kept(change, kept_code, traces, monkeypatch):
    task = replace(svrg.INNER_SVRG_ROUND, **change)
    results = [as_a_new_process(monkeypatch, task=task) for _ in range(2)]
    np.testing.assert_array_equal(*results)
    assert len(traces) == 2
    assert not list(kept_code.glob("fedkin-*"))


def test_a_directory_that_cannot_be_made_is_not_used(tmp_path):
    before = compilation._directory
    (tmp_path / "file").touch()
    keep_compiled_code(tmp_path / "file" / "compiled")
    assert compilation._directory == before


def test_code_that_cannot_be_written_is_used_all_the_same(kept_code, traces, monkeypatch):
    def no_space(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    for _ in range(2):
        assert np.isfinite(as_a_new_process(monkeypatch)).all()
    assert len(traces) == 2


def cache_directory_of_a_new_process(directory, *statements):
    """Run statements in a process that inherits the variable; return where JAX then caches code."""
    program = [*statements, "import jax", "print(jax.config.jax_compilation_cache_dir)"]
    environment = {**os.environ, compilation.DIRECTORY_VARIABLE: str(directory)}
    command = [sys.executable, "-c", "\n".join(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_fedkin_leaves_the_settings_of_jax_alone(tmp_path):
    assert (
        cache_directory_of_a_new_process(tmp_path, "import fedkin, fedkin.studies.study") == "None"
    )


def test_a_worker_of_a_study_keeps_code_where_its_parent_does(tmp_path):
    start = (
        "import os, queue",
        "from fedkin.studies import study",
        "shares = queue.Queue()",
        "shares.put(set(range(os.cpu_count())))",
        "study._start_worker(shares)",
    )
    assert cache_directory_of_a_new_process(tmp_path, *start) == str(tmp_path)


EIGENVALUES = """
import sys
from pathlib import Path
import jax
from federations import problem, regression_nodes, reveal
from fedkin.compilation import keep_compiled_code
from fedkin.methods.bilevel.node import CONSTANTS
from fedkin.models.linear import Ridge

keep_compiled_code(Path(sys.argv[1]))
federation = problem(Ridge(l2=0.1), *regression_nodes((12, 9))).federation
print(reveal(federation, CONSTANTS, key=jax.random.key(0))[0])
"""


def test_code_that_calls_lapack_runs_in_a_second_process(tmp_path):
    """JAX finds LAPACK's functions while it traces, and a second process traces nothing."""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", EIGENVALUES, str(tmp_path / "compiled")]
    first, second = (
        subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert list((tmp_path / "compiled").glob("*.code"))
    assert first == second != ""
