"""`fedkin.advise` from end to end, on federations whose answer is known."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import nnls

import fedkin
from fedkin.training.alone import STRENGTHS, OwnRows, add_ones, train
from reproduction.verdict.exact import conclude, train_all

COLUMNS = 15


def made(seed, count, sign=1, columns=COLUMNS):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, columns))
    return x, (sign * (x @ np.linspace(2, 0, columns)) + random.logistic(size=count) > 0).astype(
        int
    )


OWNER, TEST = made(3, 40), made(4, 2000)
NODES = {"kin 1": made(0, 100), "kin 2": made(1, 100), "foe": made(2, 100, -1)}
NAMES = [f"column {number}" for number in range(COLUMNS)]
FOES = {name: made(seed, 100, -1) for seed, name in enumerate("abc", start=5)}
FEW_FOLDS = {"folds": 2, "repeats": 1}
ONCE = {"repeats": 1}  # the cheaper half of the default


def frame(rows, names):
    return pd.DataFrame(rows[0], columns=NAMES)[names], rows[1]


@pytest.fixture(scope="module")
def joined():
    """DataFrames, the owner's with its columns in another order."""
    nodes = {name: frame(rows, NAMES) for name, rows in NODES.items()}
    test = frame(TEST, NAMES)
    return fedkin.advise(nodes, frame(OWNER, NAMES[::-1]), test=test, **ONCE)


@pytest.fixture(scope="module")
def hostile():
    return fedkin.advise(FOES, OWNER, test=TEST, **FEW_FOLDS)


def test_kin_are_found_and_joining_is_better(joined):
    assert joined.verdict == "join"
    assert joined.gain.value > 0
    assert joined.weights.loc["foe", "weight"] < 0.1
    test_loss = joined.candidates["test_loss"]
    assert test_loss["learned"] < test_loss["alone"]
    assert joined.test_scores["test_loss"] == test_loss["final"] < test_loss["alone"]


def test_among_foes_the_answer_is_to_stay_alone(hostile):
    assert hostile.verdict == "alone"
    assert hostile.gain.value < 0
    assert hostile.candidates["share"].tolist() == [1, 0, 0, 0, 1]
    assert (hostile.weights["share"] == 0).all()
    assert hostile.compared == hostile.best != "final"
    assert hostile.sentence.startswith("Stay alone.")
    assert hostile.test_scores["test_accuracy"] > 0.7


def test_the_parts_agree_with_each_other(joined):
    table, weights = joined.candidates, joined.weights
    assert table.loc[["alone", "equal", "size", "learned"], "share"].sum() == pytest.approx(1)
    assert weights["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert ((weights["low"] <= weights["weight"]) & (weights["weight"] <= weights["high"])).all()
    assert joined.gain.value == pytest.approx(
        table.loc["alone", "loss"] - table.loc["final", "loss"]
    )
    right = np.mean(joined.predict(TEST[0]) == TEST[1])
    assert right == pytest.approx(joined.test_scores["test_accuracy"])
    assert joined.predict_proba(TEST[0]).shape == (2000, 2)
    assert joined.cost.synchronizations > 0
    assert joined.model.columns == tuple(NAMES)


def test_shares_say_what_the_final_model_is_made_of(joined):
    """A way of joining leaves the owner n / (n + n_w), n_w = 1 / Σ w²/n_k; the rest goes by its weights."""
    share = joined.candidates["share"]
    learned = joined.weights["weight"]
    expected = 0.0
    for way, weights in {
        "equal": learned * 0 + 1 / 3,
        "size": learned * 0 + 1 / 3,
        "learned": learned,
    }.items():
        worth = 1 / np.sum(weights**2 / 100)
        expected = expected + share[way] * worth / (worth + 40) * weights
    np.testing.assert_allclose(joined.weights["share"], expected)
    own = 1 - expected.sum()
    assert f"your own rows ({own:.0%})" in joined.partners


def test_alone_is_trained_on_all_rows(hostile):
    """Among foes, the final model is a mean of penalized logistic regressions on the owner's rows."""
    rows = OwnRows(add_ones(OWNER[0]), OWNER[1], "classification", 2)
    choices = np.stack([train(rows, strength / 40)[:-1].ravel() for strength in STRENGTHS])
    shares, away = nnls(choices.T, hostile.model.theta[2:])
    assert away < 1e-4
    assert shares.sum() == pytest.approx(1, abs=0.01)


def test_the_exact_solver_of_the_evidence_gives_the_same_advice(joined, hostile):
    """reproduction/verdict/ measures hundreds of federations by a solver without any exchanges.

    It gets arrays, so this also shows that columns were matched by name.
    """
    for advice, nodes, folds in ((joined, NODES, ONCE), (hostile, FOES, FEW_FOLDS)):
        trained = train_all(nodes, OWNER, "classification", **folds)
        exact = conclude(trained)
        assert exact.judged.verdict == advice.verdict
        np.testing.assert_allclose(
            trained.federated.weights["all rows"], advice.weights["weight"], atol=0.05
        )
        np.testing.assert_allclose(exact.judged.shares, advice.candidates["share"][:4], atol=0.03)
        mean = exact.judged.losses.mean(axis=0)
        # Learned weights may stop at another minimum; the rest agrees to four digits.
        np.testing.assert_allclose(mean, advice.candidates["loss"], rtol=0.05)
        np.testing.assert_allclose(mean[:3], advice.candidates["loss"][:3], rtol=1e-4)
        assert exact.judged.gain.interval == pytest.approx(advice.gain, abs=0.1)
        own = exact.models["final"]
        kernel = advice.model.theta[2:].reshape(COLUMNS, 2)
        np.testing.assert_allclose(own[:-1], kernel, atol=0.05)


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
    np.testing.assert_array_equal(again.predict(TEST[0]), joined.predict(TEST[0]))
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
    own, test = rows(15), rows(1000)
    advice = fedkin.advise(nodes, own, model="ridge", test=test, **ONCE)
    assert advice.accuracy_gain is None
    assert advice.score_name == "squared error"
    error = np.mean((advice.predict(test[0]) - test[1]) ** 2)
    assert error == pytest.approx(advice.test_scores["test_loss"], rel=1e-3)
    assert 90 < error < 160
    assert 50 < advice.candidates.loc["equal", "loss"] < 250
    trained = train_all(nodes, own, "regression", repeats=1)
    exact = conclude(trained)
    assert exact.judged.verdict == advice.verdict
    scale = 2 * trained.deviation**2
    mean = scale * exact.judged.losses.mean(axis=0)
    np.testing.assert_allclose(mean, advice.candidates["loss"], rtol=0.02)


def test_a_class_with_too_few_rows_gets_no_verdict():
    rare = (OWNER[0], np.isin(np.arange(40), [7, 8]).astype(int))
    advice = fedkin.advise(NODES, rare, **FEW_FOLDS)
    assert advice.verdict == "unclear"
    assert advice.caution == "Only 2 of your rows have the class '1'; a verdict needs 3."
    assert advice.caution in advice.sentence
    assert np.isfinite(advice.candidates["loss"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"owner": made(3, 8)}, "owner has 8 rows, fewer than the 10"),
        ({"owner": (made(3, 40)[0], np.zeros(40, int))}, "only the class '0'"),
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
