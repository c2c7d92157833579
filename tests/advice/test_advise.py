"""`fedkin.advise` from end to end, on federations whose answer is known."""

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.training.alone import OwnRows, add_ones, train


def made(seed, count, sign=1, columns=6):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, columns))
    return x, (sign * (x @ np.linspace(2, 0, columns)) + random.logistic(size=count) > 0).astype(
        int
    )


@pytest.fixture(scope="module")
def joined():
    nodes = {"kin 1": made(0, 100), "kin 2": made(1, 100), "foe": made(2, 100, -1)}
    return fedkin.advise(nodes, made(3, 40), test=made(4, 2000))


@pytest.fixture(scope="module")
def hostile():
    nodes = {name: made(seed, 100, -1) for seed, name in enumerate("abc", start=5)}
    return fedkin.advise(nodes, made(3, 40), test=made(4, 2000))


def test_kin_are_found_and_joining_is_better(joined):
    assert joined.verdict in ("join", "unclear")
    assert joined.gain.high > 0
    assert joined.weights.loc["foe", "weight"] < 0.1
    assert (
        joined.candidates.loc["learned", "test_loss"] < joined.candidates.loc["alone", "test_loss"]
    )
    assert joined.test_scores["test_loss"] < joined.candidates.loc["alone", "test_loss"]


def test_among_foes_the_answer_is_to_stay_alone(hostile):
    assert hostile.verdict == "alone"
    assert hostile.gain.value < 0
    assert hostile.candidates["share"].tolist() == [1, 0, 0, 0]
    assert hostile.sentence.startswith("Stay alone.")
    assert hostile.test_scores["test_accuracy"] > 0.75


def test_the_parts_agree_with_each_other(joined):
    table, weights = joined.candidates, joined.weights
    assert table["share"].sum() == pytest.approx(1)
    assert weights["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert ((weights["low"] <= weights["weight"]) & (weights["weight"] <= weights["high"])).all()
    assert joined.gain.value == pytest.approx(
        table.loc["alone", "loss"] - table.loc[joined.best, "loss"]
    )
    x, y = made(4, 2000)
    right = np.mean(joined.predict(x) == y)
    assert right == pytest.approx(joined.test_scores["test_accuracy"])
    assert joined.predict_proba(x).shape == (2000, 2)
    assert joined.cost.synchronizations > 0


def test_alone_is_trained_on_all_rows(hostile):
    """The final model of a hostile federation is a penalized logistic regression on the owner's rows."""
    x, y = made(3, 40)
    rows = OwnRows(add_ones(x), y, "classification", 2)
    choices = [train(rows, strength / 40) for strength in (0.1, 0.5, 2.0, 8.0, 30.0, 120.0)]
    kernel = hostile.model.theta[2:].reshape(6, 2)
    assert min(np.abs(kernel - choice[:-1]).max() for choice in choices) < 1e-4


def test_it_is_shown_saved_and_loaded(joined, tmp_path):
    assert joined.sentence in repr(joined)
    assert "synchronizations" in repr(joined)
    html = joined._repr_html_()
    assert "<table" in html
    assert joined.headline in html
    joined.save(tmp_path / "own.advice")
    again = fedkin.Advice.load(tmp_path / "own.advice")
    assert again.sentence == joined.sentence
    pd.testing.assert_frame_equal(again.candidates, joined.candidates)
    x, _ = made(4, 50)
    np.testing.assert_array_equal(again.predict(x), joined.predict(x))
    (tmp_path / "other").write_text("no")
    for name in ("other", "none"):
        with pytest.raises(fedkin.InputError, match=r"not a saved advice|no file"):
            fedkin.Advice.load(tmp_path / name)


def test_numbers_are_advised_in_their_own_unit():
    random = np.random.default_rng(0)

    def rows(count):
        x = random.normal(size=(count, 3))
        return x, 200 + 30 * x[:, 0] + 10 * random.normal(size=count)

    nodes = {"a": rows(100), "b": rows(100)}
    test = rows(1000)
    advice = fedkin.advise(nodes, rows(15), model="ridge", test=test)
    assert advice.accuracy_gain is None
    assert advice.score_name == "squared error"
    error = np.mean((advice.predict(test[0]) - test[1]) ** 2)
    assert error == pytest.approx(advice.test_scores["test_loss"], rel=1e-3)
    assert 90 < error < 160
    assert 50 < advice.candidates.loc["equal", "loss"] < 250


def test_the_same_seed_gives_the_same_advice_and_columns_are_matched_by_name(joined):
    names = list("uvwxyz")
    frame = {
        name: (pd.DataFrame(x, columns=names), y)
        for name, (x, y) in {
            "kin 1": made(0, 100),
            "kin 2": made(1, 100),
            "foe": made(2, 100, -1),
        }.items()
    }
    x, y = made(3, 40)
    again = fedkin.advise(frame, (pd.DataFrame(x, columns=names)[names[::-1]], y))
    assert again.gain == pytest.approx(joined.gain, abs=1e-6)
    assert again.model.columns == tuple(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"owner": made(3, 8)}, "owner has 8 rows, fewer than the 10"),
        ({"owner": (made(3, 40)[0], np.zeros(40, int))}, "only the class '0'"),
        (
            {"owner": (made(3, 40)[0], np.eye(40, dtype=int)[3])},
            "fewer than 3 rows of the class '1'",
        ),
        ({"model": "cnn"}, "linear models, logistic or ridge, not 'cnn'"),
        ({"nodes": {"a": made(0, 100)}}, "only one node"),
        ({"nodes": {"a": made(0, 100), "b": made(1, 5)}}, "node 'b' has 5 rows"),
        ({"cap": 0.2}, "cap on a node's weight is 0.2"),
        ({"folds": 1}, "folds must be"),
        ({"task": "ranking"}, "task='ranking' is unknown"),
        (
            {"owner": made(3, 40, columns=400), "nodes": [made(0, 20, columns=400)] * 2},
            "802 parameters",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(change, message):
    arguments = {"nodes": {"a": made(0, 100), "b": made(1, 100)}, "owner": made(3, 40)} | change
    with pytest.raises(fedkin.InputError, match=message):
        fedkin.advise(**arguments)
