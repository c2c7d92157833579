"""scikit-learn's own checks, its own solvers as the truth, and its tools around our estimators."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedkin
from fedkin.errors import InputError
from fedkin.estimators import FederatedClassifier, FederatedRegressor, OwnerSplit

SITES = np.repeat(["a", "b", "c"], 60)


def table(classes=2, seed=0):
    """Three sites of 60 rows; the third has another rule."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(180, 4))
    rule = draw.normal(size=(4, classes))
    outputs = x @ rule
    outputs[120:] *= -1
    return x, (outputs + 0.5 * draw.normal(size=outputs.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def fitted():
    x, y = table()
    return FederatedClassifier("a").fit(x, y, sites=SITES), x, y


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_scikit_learns_checks(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a check that is skipped for want of another library
        outcomes = check_estimator(kind(), on_fail=None)
    assert [each["check_name"] for each in outcomes if each["status"] == "failed"] == []
    assert len(outcomes) > 40


@pytest.mark.parametrize("classes", [2, 3])
def test_equal_weights_agree_with_logistic_regression(classes):
    x, y = table(classes)
    l2 = 0.01
    # All nodes at the cap of 1/3, and the rows that were held out as one more node.
    model = FederatedClassifier("a", cap=1 / 3, l2=l2).fit(x, y, sites=SITES)
    held, worth = 18, 1 / (1 / 9 * (1 / 42 + 1 / 60 + 1 / 60))
    share = held / (held + worth)
    assert np.allclose(model.weights_, 1 / 3, atol=1e-6)
    training = held_out_rows(y)
    counts = np.where(SITES == "a", (1 - share) / 3 / 42, (1 - share) / 3 / 60)
    counts[training] = share / held
    # Two columns of opposite sign have half the squares of their difference.
    penalty = l2 / 2 if classes == 2 else l2
    truth = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
    truth.fit(np.c_[x, np.ones(len(x))], y, sample_weight=counts)
    assert np.abs(model.coef_ - truth.coef_[:, :-1]).max() < 1e-3
    assert np.abs(model.intercept_ - truth.coef_[:, -1]).max() < 1e-3


def held_out_rows(labels):
    """The rows of site a that choose the weights: those that the seed of the estimator holds out."""
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state

    from fedkin.methods.settings import LARGEST_SEED

    seed = int(check_random_state(0).randint(LARGEST_SEED, dtype=np.int64)) % 2**32
    own = np.arange(60)
    stratify = labels[own] if len(np.unique(labels)) < 10 else None
    return train_test_split(own, test_size=0.3, random_state=seed, stratify=stratify)[1]


def test_equal_weights_agree_with_ridge():
    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x[:180]), y[:180]
    model = FederatedRegressor("a", cap=1 / 3, l2=0.05).fit(x, y, sites=SITES)
    held, worth = 18, 1 / (1 / 9 * (1 / 42 + 1 / 60 + 1 / 60))
    share = held / (held + worth)
    counts = np.where(SITES == "a", (1 - share) / 3 / 42, (1 - share) / 3 / 60)
    counts[held_out_rows(y)] = share / held
    truth = Ridge(alpha=0.05, fit_intercept=False, tol=1e-12)
    middle = y[:60].mean()
    truth.fit(np.c_[x, np.ones(len(x))], y - middle, sample_weight=counts)
    unit = y[:60].std()
    assert np.abs(model.coef_ - truth.coef_[:-1]).max() < 1e-3 * unit
    assert abs(model.intercept_ - middle - truth.coef_[-1]) < 1e-3 * unit


def test_without_sites_it_is_logistic_regression():
    x, y = table(3)
    model = FederatedClassifier(l2=0.02).fit(x, y)
    truth = LogisticRegression(C=1 / (0.02 * len(x)), fit_intercept=False, tol=1e-10)
    truth.fit(np.c_[x, np.ones(len(x))], y)
    assert np.abs(model.coef_ - truth.coef_[:, :-1]).max() < 1e-4
    assert model.weights_ is None


def test_sites_unlike_the_owner_get_no_weight(fitted):
    model, x, y = fitted
    assert model.weights_["c"] < 0.1  # 18 rows have chosen
    assert model.weights_.sum() == pytest.approx(1)
    alone = FederatedClassifier().fit(x, y)
    assert model.score(x[:120], y[:120]) > alone.score(x[:120], y[:120])


def test_it_agrees_with_the_result_of_fit(fitted):
    model, x, _ = fitted
    assert (model.predict(x) == model.result_.predict(x)).all()
    assert np.allclose(model.predict_proba(x), model.result_.predict_proba(x), atol=1e-5)


def test_it_survives_pickling_and_cloning(fitted):
    model, x, _ = fitted
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - its own
    assert (again.predict(x) == model.predict(x)).all()
    assert again.weights_.equals(model.weights_)
    assert clone(model).get_params() == model.get_params()


def test_in_a_pipeline_and_a_search_by_the_owners_rows():
    x, y = table()
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = FederatedClassifier("a").set_fit_request(sites=True)
        pipeline = make_pipeline(StandardScaler(), estimator)
        search = GridSearchCV(
            pipeline, {"federatedclassifier__l2": [1e-3, 10.0]}, cv=OwnerSplit("a", n_splits=3)
        )
        search.fit(x, y, sites=SITES, groups=SITES)
        scores = cross_val_score(
            pipeline, x, y, cv=OwnerSplit("a", n_splits=3), params={"sites": SITES, "groups": SITES}
        )
    assert search.best_params_ == {"federatedclassifier__l2": 1e-3}
    assert scores.mean() == pytest.approx(search.best_score_, abs=1e-9)


def test_it_takes_frames_and_remembers_their_columns():
    x, y = table()
    frame = pd.DataFrame(x, columns=list("wxyz"))
    model = FederatedClassifier("a").fit(frame, y, sites=pd.Series(SITES))
    assert list(model.feature_names_in_) == list("wxyz")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("zyxw")])


@pytest.mark.parametrize(
    ("settings", "sites", "message"),
    [
        ({}, SITES, "owner is not given: choose one of a, b, c"),
        ({"owner": "d"}, SITES, "there is no site 'd': choose one of a, b, c"),
        ({"owner": "a"}, SITES[:50], "one site for each of 180 rows"),
        (
            {"owner": "a"},
            np.where(SITES == "c", None, SITES),
            "60 missing values, the first in row 120",
        ),
        ({"owner": "a"}, np.repeat("a", 180), "only one node"),
        ({"owner": "0"}, np.repeat(np.arange(60), 3), "too few rows"),
    ],
)
def test_bad_input(settings, sites, message):
    x, y = table()
    with pytest.raises(InputError, match=message):
        FederatedClassifier(**settings).fit(x, y, sites=sites)


def test_one_class_is_refused():
    with pytest.raises(InputError, match="one class only"):
        FederatedClassifier().fit([[0.0], [1.0]], [1, 1])


def test_folds_need_sites_and_enough_rows():
    with pytest.raises(InputError, match="give groups=sites"):
        next(OwnerSplit("a").split([0]))
    with pytest.raises(InputError, match="1 rows, too few for 5 folds"):
        next(OwnerSplit("a").split([0, 0], None, ["a", "b"]))


def test_they_are_public():
    assert fedkin.FederatedClassifier is FederatedClassifier
