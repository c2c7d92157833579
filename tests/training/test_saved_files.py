"""Saved results that somebody else may have made: damaged and hostile ones are refused with a sentence."""

import io
import json
import random
import struct
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.messages import STEERING, printable
from fedkin.training.collaboration import Collaboration
from mutations import ARRAYS, DEEP, array_file, bomb, members_of, mutated, zip_of

X = np.linspace(-1, 1, 20)[:, None]


@pytest.fixture(scope="module")
def result():
    nodes = {"north": (X, 2 * X[:, 0]), "south": (X, -X[:, 0])}
    return fedkin.fit(nodes, (X, 2 * X[:, 0]), model="ridge", method="fedavg", steps=1)


@pytest.fixture(scope="module")
def collaboration(result):
    scores = pd.DataFrame({"points": [20, 20], "fedavg": [0.1, 0.2]}, index=["north", "south"])
    return Collaboration(
        method="fedavg",
        nodes=("north", "south"),
        models={"north": result, "south": replace(result, stopped="budget")},
        scores=scores.rename_axis("node"),
        measure="loss",
        scored_on="validation",
        cost=result.cost,
        failures={},
        warnings=("a warning",),
    )


def load(content, tmp_path, kind):
    path = tmp_path / "saved.fedkin"
    path.write_bytes(content)
    return fedkin.load(path) if kind == "result" else Collaboration.load(path)


def saved(kind, tmp_path, request):
    path = tmp_path / "good.fedkin"
    request.getfixturevalue(kind).save(path)
    return path.read_bytes()


def refusal(content, tmp_path, kind="result"):
    """Return the sentence with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load(content, tmp_path, kind)
    sentence = str(caught.value)
    assert len(sentence) < 500 + len(str(tmp_path))
    assert not STEERING.search(sentence)
    return sentence


@pytest.mark.parametrize(("kind", "seed"), [("result", 0), ("result", 1), ("collaboration", 2)])
def test_only_an_input_error_leaves_load(kind, seed, tmp_path, request):
    """A hundred files each, changed at random."""
    good, chance = saved(kind, tmp_path, request), random.Random(seed)
    sentences = []
    for _ in range(100):
        try:
            found = load(mutated(good, chance), tmp_path, kind)
        except InputError as error:
            sentences.append(str(error))
        else:
            assert printable(repr(found)) == repr(found)
    assert len(sentences) > 50
    assert not any(map(STEERING.search, sentences))


def changed(content, **values):
    """Return a saved result that says something else."""
    members = members_of(content)
    members["result.json"] = json.dumps(json.loads(members["result.json"]) | values).encode()
    return zip_of(members)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"weights": {"north": "much"}}, "weights.north"),
        ({"weights": ["north"]}, "weights"),
        ({"weights": {"n\x1b[2J": 1.0}}, "control characters"),
        ({"columns": ["age\x9b2J"]}, "control characters"),
        ({"cost": {}}, None),
        ({"cost": {"synchronizations": "none"}}, "cost"),
        ({"point_shape": [10**9, 10**9]}, "impossible"),
        ({"point_shape": [-1]}, "impossible"),
        ({"point_dtype": "object"}, "point_dtype"),
        ({"classes": [[1]]}, "classes"),
        ({"cap": {"south": 0.5}}, "no cap"),
        ({"model": {"name": "Ridge", "settings": {"l2": "0.1"}}}, "l2"),
        ({"model": {"name": "Ridge", "settings": {"size": 1}}}, "no setting size"),
        ({"model": {"name": "os.system", "settings": {}}}, "os.system"),
        ({"model": {"name": "MLP", "settings": {"hidden": 10**9}}}, "parameters"),
        ({"comparison": [{"loss": 1.0}]}, "weights"),
        ({"format": 2}, "has format 2"),
        ({"format": "1"}, "format"),
    ],
)
def test_a_result_of_the_wrong_form_is_refused(values, words, result, tmp_path):
    content = changed(result.to_bytes(), **values)
    if words is None:
        assert load(content, tmp_path, "result").cost.synchronizations == 0
    else:
        assert words in refusal(content, tmp_path)


@pytest.mark.parametrize("place", ["result.json", "collaboration.json"])
def test_deep_nesting_is_refused(place, tmp_path, request):
    kind = place.partition(".")[0]
    members = members_of(saved(kind, tmp_path, request)) | {place: DEEP}
    assert "damaged" in refusal(zip_of(members), tmp_path, kind)


@pytest.mark.parametrize("array", ARRAYS)
def test_an_array_of_the_wrong_form_is_refused(array, result, tmp_path):
    members = members_of(result.to_bytes())
    arrays = members_of(members["arrays.npz"]) | {"theta.npy": array}
    assert refusal(zip_of(members | {"arrays.npz": zip_of(arrays)}), tmp_path)


@pytest.mark.parametrize(
    "array", [np.zeros(2, int), np.zeros((2, 1), "f4"), np.full(2, np.inf, "f4")]
)
def test_parameters_of_another_type_or_shape_are_refused(array, result, tmp_path):
    members = members_of(result.to_bytes())
    arrays = members_of(members["arrays.npz"]) | {"theta.npy": array_file(array)}
    assert refusal(zip_of(members | {"arrays.npz": zip_of(arrays)}), tmp_path)


def test_a_file_that_expands_a_thousandfold_is_refused_before_it_does(result, tmp_path):
    """From 8 MB to 8 GB: what members expand to is in the directory of the file."""
    content = bomb("result.json")
    assert len(content) < 9_000_000
    begin = time.process_time()
    assert "expands from" in refusal(content, tmp_path)
    inner = members_of(result.to_bytes()) | {"arrays.npz": bomb("theta.npy")}
    assert "expands from" in refusal(zip_of(inner), tmp_path)
    assert time.process_time() - begin < 5


def test_a_member_that_lies_about_its_size_is_not_expanded_either(result, tmp_path):
    content = bytearray(bomb("result.json", copies=1))
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        start = content.rfind(mark) + place
        content[start : start + 4] = struct.pack("<I", 1000)
    assert "damaged" in refusal(bytes(content), tmp_path)


def test_a_table_of_too_many_rows_is_refused_before_it_is_read(result, tmp_path):
    many = io.BytesIO()
    pd.DataFrame({"step": np.zeros(60_000_000, np.int8)}).to_parquet(many, index=False)
    members = members_of(result.to_bytes()) | {"history.parquet": many.getvalue()}
    assert len(many.getvalue()) < 1_000_000
    assert "60000000 rows" in refusal(zip_of(members), tmp_path)


def test_names_in_an_archive_lead_nowhere(result, tmp_path):
    """Members are read by their names and never written."""
    members = members_of(result.to_bytes()) | {"../../escaped": b"x", "/tmp/escaped-too": b"x"}
    assert load(zip_of(members), tmp_path, "result").method == "fedavg"
    assert not any(path.name.startswith("escaped") for path in tmp_path.parent.rglob("escaped*"))
