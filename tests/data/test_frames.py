"""DataFrames are matched by column name, and inputs that mean something else than numbers are refused."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import fedkin
from fedkin.data.arrays import check_arrays
from fedkin.data.frames import common_columns

NAMES = ["age", "pressure", "noise"]


def frame(rows, seed, sign=1):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    return pd.DataFrame(x, columns=NAMES), (sign * x[:, 0] > 0).astype(int)


def federation():
    return {"a": frame(40, 0), "b": frame(40, 1), "c": frame(40, 2, sign=-1)}, frame(40, 3)


@pytest.fixture(scope="module")
def trained():
    nodes, owner = federation()
    return fedkin.fit(nodes, owner)


def test_columns_in_another_order_change_nothing(trained):
    nodes, owner = federation()
    x, y = nodes["b"]
    turned = fedkin.fit({**nodes, "b": (x[NAMES[::-1]], y)}, (owner[0][NAMES[::-1]], owner[1]))
    assert turned.weights == trained.weights
    assert turned.columns == tuple(NAMES)


def test_predict_finds_the_columns_by_name(trained, tmp_path):
    x, y = frame(200, 4)
    expected = trained.predict(x)
    assert np.mean(expected == y) > 0.9
    other = x.assign(more="text")[["more", *NAMES[::-1]]]
    np.testing.assert_array_equal(trained.predict(other), expected)
    trained.save(tmp_path / "own.fedkin")
    again = fedkin.load(tmp_path / "own.fedkin")
    np.testing.assert_array_equal(again.predict(other), expected)
    with pytest.raises(fedkin.InputError, match=r"no column 'age'.*trained on 'age', 'pressure'"):
        trained.predict(x.rename(columns={"age": "years"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.rename(columns={"age": "years"}), "no column 'age' and has 'years'"),
        (lambda x: x.to_numpy(), "is an array but node 'a' is a DataFrame"),
        (lambda x: x.assign(extra=1.0), "has 'extra', which node 'a' has not"),
        (lambda x: x.set_axis(["age", "age", "noise"], axis=1), "two columns called 'age'"),
        (lambda x: x.assign(age=pd.NA), "column 'age' has no value at all"),
        (
            lambda x: x.assign(age=x["age"].astype("Float64").where(x["age"] > 0, pd.NA)),
            "column 'age' has missing values",
        ),
        (lambda x: x.assign(age="old"), "column 'age' has .* values, not numbers"),
        (lambda x: x.assign(age=pd.Timestamp("2024-03-01")), "column 'age' has datetime64"),
        (lambda x: x.assign(age=1j), "column 'age' has complex128 values, not numbers"),
        (
            lambda x: x.assign(
                age=x["age"].where(x["age"] > 0), noise=x["noise"].where(x["noise"] > 0)
            ),
            "columns 'age', 'noise' have missing values",
        ),
    ],
)
def test_frames_that_do_not_match_are_refused(change, message):
    nodes, owner = federation()
    x, y = nodes["b"]
    with pytest.raises(fedkin.InputError, match=f"node 'b'.*{message}"):
        fedkin.fit({**nodes, "b": (change(x), y)}, owner)


def test_arrays_have_no_columns():
    assert common_columns([np.zeros((2, 2)), [[1, 2]]], ["a", "b"]) is None


def test_missing_values_of_pandas_are_missing():
    nodes, owner = federation()
    x, y = nodes["a"]
    holes = x.to_numpy().astype(object)
    holes[3, 1] = pd.NA
    plain = {name: (inputs.to_numpy(), labels) for name, (inputs, labels) in nodes.items()}
    owner = (owner[0].to_numpy(), owner[1])
    with pytest.raises(fedkin.InputError, match=r"NaN or infinite values in 1 of 40 .*point 3"):
        fedkin.fit({**plain, "a": (holes, y)}, owner)
    labels = pd.array(y, dtype="Int64")
    assert check_arrays(plain, (owner[0], labels), None, task="classification").classes is not None
    labels[0] = pd.NA
    with pytest.raises(fedkin.InputError, match="labels are"):
        fedkin.fit({**plain, "a": (x.to_numpy(), labels)}, owner)
    with pytest.raises(fedkin.InputError, match="40 of 40 labels are missing"):
        fedkin.fit({**plain, "a": (x.to_numpy(), np.full(40, None, dtype=object))}, owner)


def plain(scale=1.0):
    nodes, owner = federation()
    made = {name: (x.to_numpy() * scale, y) for name, (x, y) in nodes.items()}
    return made, (owner[0].to_numpy() * scale, owner[1])


def test_sparse_matrices_and_huge_numbers_are_refused_with_what_to_do():
    nodes, owner = plain()
    x, y = nodes["a"]
    with pytest.raises(fedkin.InputError, match=r"node 'a': .* sparse matrix.*toarray"):
        fedkin.fit({**nodes, "a": (sparse.csr_matrix(x), y)}, owner)
    with pytest.raises(fedkin.InputError, match="node 'a' has complex numbers"):
        fedkin.fit({**nodes, "a": (x * 1j, y)}, owner)
    with pytest.raises(fedkin.InputError, match=r"as large as .*e\+30; standardize"):
        fedkin.fit(*plain(1e30))


def test_numbers_of_numpy_are_numbers(trained):
    nodes, owner = plain()
    result = fedkin.fit(nodes, owner, seed=np.int64(0), classes=np.int32(2), steps=np.int64(200))
    assert result.weights == trained.weights


@pytest.mark.parametrize("seed", [2**32, 2**63, -1, 1.5])
def test_seeds_that_cannot_be_used(seed):
    nodes, owner = plain()
    with pytest.raises(fedkin.InputError, match="seed must be"):
        fedkin.fit(nodes, owner, seed=seed)


def test_no_rows_give_no_predictions(trained):
    assert trained.predict(np.zeros((0, 3))).shape == (0,)
    assert trained.predict_proba(np.zeros((0, 3))).shape == (0, 2)


def test_nodes_with_too_few_rows_a_single_node_and_one_class():
    nodes, owner = plain()
    small = {**nodes, "d": (nodes["a"][0][:1], nodes["a"][1][:1])}
    with pytest.raises(fedkin.InputError, match="node 'd' has 1 row, fewer than the 10"):
        fedkin.fit(small, owner)
    fedkin.fit(small, owner, minimum_rows=1, steps=1)
    with pytest.raises(fedkin.InputError, match="only one node"):
        fedkin.fit({"a": nodes["a"]}, owner)
    fedkin.fit({"a": nodes["a"]}, owner, method="fedavg", steps=1)
    with pytest.raises(fedkin.InputError, match="validation data have only the class '1'"):
        fedkin.fit(nodes, (owner[0], np.ones(40, int)))
