import json
import zipfile

import numpy as np
import pytest

import fedkin
from fedkin.data.partitions.base import random_stream
from fedkin.errors import InputError
from fedkin.training.fit_all import _split
from fedkin.types import Points

SIGNS = {"north": 1, "south": 1, "west": -1, "east": -1}


def node(sign, rows=80, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3)).astype(np.float32)
    return x, np.where(sign * x[:, 0] + 0.2 * draw.normal(size=rows) > 0, "ill", "well")


NODES = {name: node(sign, seed=number) for number, (name, sign) in enumerate(SIGNS.items())}
VALIDATIONS = {name: node(sign, 40, 10 + n) for n, (name, sign) in enumerate(SIGNS.items())}


@pytest.fixture(scope="module")
def everyone():
    return fedkin.fit_all(NODES, validations=VALIDATIONS, tests=VALIDATIONS, steps=30)


def test_every_row_equals_the_run_of_that_owner_alone(everyone):
    for name in SIGNS:
        single = fedkin.fit(NODES, VALIDATIONS[name], test=VALIDATIONS[name], steps=30)
        found = everyone.models[name]
        assert found.weights == single.weights
        np.testing.assert_array_equal(found.theta, single.theta)
        assert found.cost == single.cost
        assert found.stopped == single.stopped
        assert dict(everyone.matrix.loc[name]) == single.weights


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("bilevel", {}),
        ("fedavg", {"rounds": 3}),
        ("ditto", {"rounds": 2}),
        ("pfedme", {"rounds": 2}),
    ],
)
def test_networks_too_by_every_method(method, settings):
    """Ditto and pFedMe personalize on the node's own training data, which `Problem.build` calls `own`."""
    from fedkin.methods.registry import make_method
    from fedkin.training.problem import Problem, simulation
    from fedkin.training.runner import Budget

    found = fedkin.fit_all(
        NODES, validations=VALIDATIONS, model="mlp", method=method, steps=3, compare=(), **settings
    )
    encode = lambda p: Points(p[0], (p[1] == "well").astype(np.int32))  # noqa: E731
    nodes = {name: encode(points) for name, points in NODES.items()}
    for name in ("north", "east"):
        problem = Problem.build(
            simulation(nodes, batch_size=50, seed=0),
            encode(VALIDATIONS[name]),
            model="mlp",
            classes=np.array(["ill", "well"]),
            own=nodes[name],
        )
        single = problem.train(make_method(method, settings), budget=Budget(3)).state
        np.testing.assert_array_equal(found.models[name].theta, single.kept_theta)
        assert found.models[name].cost == single.cost


def test_synchronizations_are_those_of_the_slowest_owner(everyone):
    slowest = max(result.cost.synchronizations for result in everyone.models.values())
    assert everyone.cost.synchronizations == slowest
    points = np.array([result.cost.node_points for result in everyone.models.values()])
    together = np.array(everyone.cost.node_points)
    assert (together <= points.sum(axis=0)).all()  # the first exchange is the same for all
    assert (together > points.max(axis=0)).all()


def test_equal_weights_are_trained_once():
    found = fedkin.fit_all(NODES, method="fedavg", steps=2, rounds=3, compare=())
    assert len({result.cost.node_points for result in found.models.values()}) == 1
    assert found.cost == found.models["north"].cost
    thetas = [result.theta for result in found.models.values()]
    assert all(np.array_equal(theta, thetas[0]) for theta in thetas)


def test_groups_and_scores(everyone):
    assert everyone.groups == (("north", "south"), ("west", "east"))
    assert list(everyone.scores.columns) == ["points", "local", "fedavg", "bilevel"]
    assert everyone.scored_on == "test"
    for name in SIGNS:
        x, y = VALIDATIONS[name]
        accuracy = float(np.mean(everyone.predict(name, x) == y))
        assert everyone.scores.loc[name, "bilevel"] == pytest.approx(accuracy)
    own = everyone.scores["bilevel"].to_numpy()
    row = everyone.summary.loc["bilevel"]
    assert row["mean"] == pytest.approx(own.mean())
    assert row["worst"] == own.min()
    assert row["tenth_percentile"] == pytest.approx(np.quantile(own, 0.1))
    gain = own - everyone.scores["local"].to_numpy()
    assert (row["gain"], row["lose"]) == ((gain > 0).sum(), (gain < 0).sum())
    assert everyone.summary.loc["fedavg", "mean"] < 0.75 < row["mean"]


def test_local_trains_on_the_rows_of_the_node_alone(everyone):
    """Its model does well at home, and as badly as chance allows in the other group."""
    local = fedkin.fit_all(NODES, validations=VALIDATIONS, method="local", steps=20, compare=())
    assert local.matrix is None
    assert local.groups == ()
    x, y = NODES["west"]
    assert np.mean(local.predict("east", x) == y) > 0.85
    assert np.mean(local.predict("north", x) == y) < 0.15
    assert local.cost.synchronizations == 0


def test_it_is_saved_and_loaded_whole(everyone, tmp_path):
    path = tmp_path / "everyone.fedkin"
    everyone.save(path)
    again = fedkin.Collaboration.load(path)
    assert again.matrix.equals(everyone.matrix)
    assert again.scores.equals(everyone.scores)
    assert again.groups == everyone.groups
    assert (again.cost, again.warnings, again.method) == (everyone.cost, (), "bilevel")
    x, _ = NODES["north"]
    np.testing.assert_array_equal(again.predict("west", x), everyone.predict("west", x))
    assert repr(again) == repr(everyone)
    with pytest.raises(InputError, match="not a saved fedkin result"):
        fedkin.load(path)
    everyone.models["north"].save(path)
    with pytest.raises(InputError, match="not a saved collaboration"):
        fedkin.Collaboration.load(path)
    with pytest.raises(InputError, match="there is no file"):
        fedkin.Collaboration.load(tmp_path / "nothing")


def test_it_shows_itself(everyone):
    text = repr(everyone)
    assert "4 nodes by bilevel" in text
    assert "group: north and south" in text
    page = everyone._repr_html_()
    assert page.count("<td style") == 16
    assert "north" in page


def test_an_unknown_node_is_named(everyone):
    with pytest.raises(InputError, match="there is no node 'nrth'; did you mean north"):
        everyone.predict("nrth", NODES["north"][0])


@pytest.mark.parametrize(
    "fractions", [{"validation": 0.2, "test": 0.25}, {"validation": 0.5, "test": None}]
)
def test_a_node_is_split_by_class_without_overlap(fractions):
    labels = np.repeat([0, 1], [40, 20])
    points = Points(np.arange(60.0)[:, None], labels)
    pieces = _split(points, fractions, "node 1", "classification", random_stream(0, 2, 0))
    rows = np.concatenate([piece.inputs[:, 0] for piece in pieces.values()])
    assert sorted(rows) == list(range(60))
    for what, share in fractions.items():
        if share is not None:
            assert len(pieces[what].labels) == round(60 * share)
            assert np.sum(pieces[what].labels) == pytest.approx(20 * share, abs=1)


def test_the_smallest_node_still_has_a_row_for_everything():
    points = Points(np.zeros((3, 1)), np.array([0, 1, 0]))
    fractions = {"validation": 0.9, "test": 0.05}
    pieces = _split(points, fractions, "node 1", "classification", random_stream(0, 2, 0))
    assert {len(piece.labels) for piece in pieces.values()} == {1}


def test_a_node_with_one_class_is_reported():
    x, _ = NODES["north"]
    nodes = NODES | {"constant": (x, np.full(len(x), "ill"))}
    found = fedkin.fit_all(nodes, steps=2, compare=())
    assert "node 'constant' has a single class, ill" in found.warnings[0]
    assert "constant" in found.models


X, Y = NODES["north"]


@pytest.mark.parametrize(
    ("nodes", "settings", "message"),
    [
        ({"a": (X, Y)}, {}, "one node only, node 'a'"),
        ({}, {}, "there are no nodes"),
        ({1: (X, Y), "1": (X, Y)}, {}, "two nodes have the name '1'"),
        ({"a": (X[:1], Y[:1]), "b": (X, Y)}, {}, "node 'a' has 1 row: too few to hold out"),
        ({"a": (X[:6], Y[:6]), "b": (X, Y)}, {}, "node 'a' has 6 rows, fewer than the 10"),
        ({"a": (X, Y), "b": (X, Y)}, {"seed": 2**40}, "seed must be at most"),
        (NODES, {"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1"),
        (NODES, {"validation_fraction": 0.6, "test_fraction": 0.4}, "leave no rows for training"),
        (
            NODES,
            {"validations": {"north": (X, Y)}},
            "validations has nothing for south, west and east",
        ),
        (
            NODES,
            {"validations": {**VALIDATIONS, "up": (X, Y)}},
            "validations has 'up', which is not",
        ),
        (NODES, {"tests": [(X, Y)]}, "tests has 1 entries for 4 nodes"),
        (
            NODES,
            {"validations": {**VALIDATIONS, "west": (X, Y[:3])}},
            "the validation data of node 'west'",
        ),
        (NODES, {"method": "bilvel"}, "bilevel"),
        (NODES, {"proximal": 1.0}, "proximal is not a setting of the method 'bilevel'"),
        (NODES, {"cap": 0.1}, "cap"),
    ],
)
def test_bad_input_is_refused_with_its_own_message(nodes, settings, message):
    with pytest.raises(InputError, match=message):
        fedkin.fit_all(nodes, **settings)


GROUPS = {"one": 1, "two": 1, "three": 1, "odd": -1}


@pytest.mark.parametrize(
    "settings", [{}, {"model": "mlp", "steps": 8}, {"outer": "proximal", "rounds": 3, "steps": 2}]
)
def test_a_node_may_give_more_weight_to_its_own_rows(settings):
    """The node that nobody is like gives itself all it may; for other nodes the cap is as before."""
    nodes = {name: node(sign, 60, seed) for seed, (name, sign) in enumerate(GROUPS.items())}
    everyone = fedkin.fit_all(nodes, cap=0.4, own_cap=0.7, compare=[], **settings)
    matrix = everyone.matrix
    limits = np.full(matrix.shape, 0.4) + 0.3 * np.eye(len(nodes))
    assert (matrix.to_numpy() <= limits + 1e-5).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-5)
    assert everyone.models["odd"].cap == {"one": 0.4, "two": 0.4, "three": 0.4, "odd": 0.7}
    if not settings:
        # Also the owners whose loss is not convex in the weights: other starts keep to every node's cap.
        assert all(each.stopped.startswith("converged") for each in everyone.models.values())
        assert matrix.loc["odd", "odd"] == pytest.approx(0.7, abs=1e-4)
        assert "odd" in everyone.models["odd"].at_cap


def test_an_own_cap_needs_an_owner_that_is_a_node():
    nodes = {"a": node(1), "b": node(1, seed=1)}
    with pytest.raises(InputError, match="below the cap on other nodes"):
        fedkin.fit_all(nodes, cap=0.5, own_cap=0.2)
    with pytest.raises(InputError, match="own_cap is for an owner that is a node"):
        fedkin.fit(nodes, node(1, seed=2), method=fedkin.Bilevel(own_cap=1.0))


@pytest.mark.parametrize(("what", "given"), [("validation", "validations"), ("test", "tests")])
def test_a_share_of_rows_beside_given_rows_is_refused(what, given):
    settings = {given: VALIDATIONS, f"{what}_fraction": 0.5}
    with pytest.raises(InputError, match=f"either {what}_fraction or {given}"):
        fedkin.fit_all(NODES, **settings)


def test_weights_learned_by_very_few_rows_are_reported():
    nodes = {"few": node(1, 10), "many": node(1, 80, 1)}
    found = fedkin.fit_all(nodes, compare=[], steps=1)
    assert any("'few' has 2 validation rows" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 2}, "has format 2, this version"), ({"measure": None}, "it is damaged")],
)
def test_a_file_that_cannot_be_read_says_why(change, message, everyone, tmp_path):
    path = tmp_path / "everyone.fedkin"
    everyone.save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    description = json.loads(content["collaboration.json"]) | change
    known = {name: value for name, value in description.items() if value is not None}
    content["collaboration.json"] = json.dumps(known).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    with pytest.raises(InputError, match=message) as caught:
        fedkin.Collaboration.load(path)
    assert ("damaged" in str(caught.value)) == ("damaged" in message)


def test_an_owner_knows_which_node_it_is():
    """Only where its own rows are those of the node of its name."""
    from fedkin.training.joint import JointProblem, OwnerData

    encode = lambda p: Points(p[0], (p[1] == "well").astype(np.int32))  # noqa: E731
    nodes = {name: encode(points) for name, points in NODES.items()}
    other = encode(VALIDATIONS["north"])
    owners = {
        "north": OwnerData(other, own=nodes["north"]),
        "south": OwnerData(other),
        "fold 1": OwnerData(other, own=nodes["north"]),
    }
    problem = JointProblem.build(nodes, owners, classes=np.arange(2))
    assert [each.center.own_node for each in problem.problems.values()] == [0, None, None]
