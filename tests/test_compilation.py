"""Code on disk: what a later process finds there, and what it does if that is spoilt."""

from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, problem
from fedkin import compilation
from fedkin.compilation import keep_compiled_code
from fedkin.models.base import WrappedModel
from fedkin.models.linear import Logistic
from fedkin.nodes import svrg


@dataclass(frozen=True)
class OwnModel(Logistic):
    """A user's: it may compute something else in the next process."""


@pytest.fixture
def kept_code(tmp_path):
    """A directory for code, for one test."""
    before = jax.config.jax_compilation_cache_dir
    keep_compiled_code(tmp_path / "compiled")
    yield tmp_path / "compiled"
    keep_compiled_code(Path(before))


@pytest.fixture
def traces(monkeypatch):
    """Count how often Local-SVRG is traced."""
    found = []
    trace = svrg.svrg_round
    monkeypatch.setattr(svrg, "svrg_round", lambda *a, **k: found.append(1) or trace(*a, **k))
    return found


def as_a_new_process(monkeypatch, model=None):
    """Train a little with nothing in memory; return the nodes' points."""
    monkeypatch.setattr(compilation, "COMPILED", {})
    model = model or Logistic(classes=3, l2=0.1)
    federation = problem(model, *classification_nodes((30, 17))).federation
    numbers = {"learning_rate": 0.1, "refresh_probability": 0.3, "averaging_rate": 0.0}
    replies, _ = federation.call(
        "inner_svrg_round",
        {"point": jnp.zeros(federation.objective.size), **numbers},
        key=jax.random.key(0),
        start=True,
        steps=5,
        reply="point",
    )
    return np.asarray(replies["point"])


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


def test_other_sources_and_other_precision_find_nothing(kept_code, traces, monkeypatch):
    as_a_new_process(monkeypatch)
    with jax.enable_x64(True):
        assert as_a_new_process(monkeypatch).dtype == np.float64
    assert len(traces) == 2
    other = ("other sources", *compilation._surroundings()[1:])
    monkeypatch.setattr(compilation, "_surroundings", lambda: other)
    as_a_new_process(monkeypatch)
    assert len(traces) == 3


@pytest.mark.parametrize(
    "model", [OwnModel(classes=3, l2=0.1), WrappedModel(nn.Dense(3))], ids=["derived", "wrapped"]
)
def test_code_of_a_model_from_elsewhere_is_not_kept(model, kept_code, traces, monkeypatch):
    for _ in range(2):
        as_a_new_process(monkeypatch, model)
    assert len(traces) == 2
    assert not list(kept_code.glob("fedkin-*"))


def test_a_directory_that_cannot_be_made_is_not_used(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "file").touch()
    keep_compiled_code(tmp_path / "file" / "compiled")
    assert jax.config.jax_compilation_cache_dir == before


def test_code_that_cannot_be_written_is_used_all_the_same(kept_code, traces, monkeypatch):
    def no_space(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    for _ in range(2):
        assert np.isfinite(as_a_new_process(monkeypatch)).all()
    assert len(traces) == 2
