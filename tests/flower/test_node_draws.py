"""What a node draws from its own secret: the same for ever, and nothing that the center can choose."""

import os
import stat

import numpy as np
import pytest

from attacks.victim import Center, agreed, make_table
from fedkin.data.batches import divide
from fedkin.errors import InputError
from fedkin.flower.node_draws import SECRET_BYTES, SECRET_FILE, read_secret
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT
from fedkin.methods.descent.node import DESCENT_ROUND


@pytest.fixture
def patients(tmp_path):
    """The settings of a node with a table of 60 rows, and a secret so that all runs of a test are alike."""
    make_table(tmp_path / "table.csv")
    write_secret(tmp_path / "state", 1)
    return {
        "name": "hospital",
        "data": str(tmp_path / "table.csv"),
        "label": "outcome",
        "plain-sums": True,
        "state": str(tmp_path / "state"),
    }


def write_secret(directory, number):
    directory.mkdir()
    path = directory / SECRET_FILE
    path.write_bytes(bytes([number]) * SECRET_BYTES)
    path.chmod(0o600)


def joined(settings, **more):
    center = Center(settings)
    preprocessing = agreed(center.describe())
    return center, center.join(preprocessing, **more)


def step(center, point, key, **more):
    """The mean gradient of the mini-batch that a request draws."""
    asked = {"learning_rate": 1.0} | more
    return point - center.ask(DESCENT_ROUND, {"point": point}, key, **asked).vectors["point"]


def keys(count):
    return [f"{number:016x}" for number in range(count)]


def different(rows, tolerance=1e-4):
    """The different vectors among some, up to rounding, in an order that does not depend on theirs."""
    found = []
    for row in rows:
        if not any(np.allclose(row, other, atol=tolerance) for other in found):
            found.append(row)
    return np.array(sorted(found, key=lambda row: round(float(row[0]), 3) + row[2]))


@pytest.mark.parametrize("more", [{}, {"seed": 7}, {"number": 3}, {"seed": 8, "number": 1}])
def test_the_mini_batches_are_the_same_whatever_the_center_sends(patients, more):
    gradients = []
    for sent in ({}, more):
        center, _ = joined(patients, batch_size=10, **sent)
        zero = np.zeros(center.size, np.float32)
        gradients.append(different([step(center, zero, key) for key in keys(40)]))
    assert len(gradients[0]) == 6
    np.testing.assert_allclose(gradients[0], gradients[1], atol=2e-5)


def test_mini_batches_of_every_size_are_made_of_the_same_groups(patients):
    """Sums over mini-batches of 20 are sums of those of 5: both together say nothing about fewer rows."""
    sums = {}
    for size in (5, 20):
        center, answer = joined(patients, batch_size=size)
        assert answer["batches"] == 60 // size
        zero = np.zeros(center.size, np.float32)
        sums[size] = size * different([step(center, zero, key) for key in keys(60)])
        assert len(sums[size]) == 60 // size
    together = np.linalg.matrix_rank(np.concatenate([sums[5], sums[20]]), tol=1e-3)
    assert together == np.linalg.matrix_rank(sums[5], tol=1e-3)
    for larger in sums[20]:
        parts, *_ = np.linalg.lstsq(sums[5].T, larger, rcond=None)
        np.testing.assert_allclose(sums[5].T @ parts, larger, atol=1e-3)


def test_groups_have_the_size_that_the_owner_wants(patients):
    _, answer = joined(patients | {"minimum-batch": 15}, batch_size=15)
    assert answer["batches"] == 4
    _, answer = joined(patients | {"minimum-batch": 1000}, batch_size=1000)
    assert answer["batches"] == 1


def test_the_same_request_is_answered_alike_and_another_model_draws_others(patients):
    center, _ = joined(patients, batch_size=5)
    random = np.random.default_rng(0)
    point = random.normal(size=center.size).astype(np.float32)
    first = step(center, point, keys(1)[0])
    np.testing.assert_array_equal(first, step(center, point, keys(1)[0]))
    # After a restart, too, and in another attempt at the run.
    again, _ = joined(patients, batch_size=5)
    np.testing.assert_array_equal(first, step(again, point, keys(1)[0]))
    # With one key, models that hardly differ get different mini-batches: a handle on one does not exist.
    near = [point * np.float32(1 + 1e-6 * number) for number in range(30)]
    assert len(different([step(center, each, keys(1)[0]) for each in near])) > 6


def test_another_node_divides_the_same_rows_in_another_way(patients, tmp_path):
    found = []
    for number, name in enumerate(("one", "two")):
        write_secret(tmp_path / name, number)
        center, _ = joined(patients | {"state": str(tmp_path / name)}, batch_size=10)
        zero = np.zeros(center.size, np.float32)
        found.append(different([step(center, zero, key) for key in keys(40)]))
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_what_needs_all_rows_is_what_it_was(patients):
    """Sums over all rows do not depend on the division."""
    products = []
    for more in ({}, {"reproducible": True}):
        center, _ = joined(patients | more)
        vector = np.arange(center.size, dtype=np.float32)
        asked = {"vector": vector, "theta": np.zeros(center.size)}
        products.append(center.ask(HESSIAN_PRODUCT, asked).vectors["product"])
    np.testing.assert_allclose(products[0], products[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("points", [1, 4, 5, 9, 60, 61, 64, 203])
@pytest.mark.parametrize("group", [1, 5, 20, 1000])
def test_a_division_has_every_point_once_and_never_splits_a_group(points, group):
    groups = [set(part.tolist()) for part in divide(points, 1, 0, 0, group)]
    assert min(map(len, groups)) >= min(group, points)
    for size in (1, 7, 50, 1000):
        parts = [set(part.tolist()) for part in divide(points, size, 0, 0, group)]
        assert sorted(row for part in parts for row in part) == list(range(points))
        assert all(own <= part or not own & part for own in groups for part in parts)
        if size >= 2 * group:
            assert max(map(len, parts)) <= size


def test_the_secret_is_for_its_owner_only(tmp_path):
    before = os.umask(0)
    try:
        secret = read_secret(tmp_path / "state")
    finally:
        os.umask(before)
    path = tmp_path / "state" / SECRET_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(tmp_path / "state") == secret != read_secret(tmp_path / "other")
    assert len(list((tmp_path / "state").iterdir())) == 1
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_secret(tmp_path / "state")
    path.chmod(0o600)
    path.write_bytes(secret[:-1])
    with pytest.raises(InputError, match="damaged"):
        read_secret(tmp_path / "state")
