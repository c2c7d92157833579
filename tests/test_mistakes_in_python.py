"""A newcomer's mistakes in Python: each is an InputError whose message says what to do."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

import fedkin

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
NODES = {"a": (X, Y), "b": (X + 0.1, Y)}
OWN = (X - 0.1, Y)
FRAME = pd.DataFrame({"x": X[:, 0], "s": ["f", "m"] * 20})


def fit(nodes=NODES, validation=OWN, **more):
    return lambda: fedkin.fit(nodes, validation, **more)


def with_a(inputs=X, labels=Y):
    return fit({"a": (inputs, labels), "b": NODES["b"]})


@pytest.fixture(scope="module")
def result():
    return fedkin.fit(NODES, OWN, method="fedavg", steps=1)


MISTAKES = {
    "nodes that are None": (fit(None), "a dict of name: (X, y) or a list"),
    "no nodes": (fit({}), "give at least one (X, y)"),
    "one pair for the nodes": (fit((X, Y)), "node 1: expected a pair (X, y)"),
    "X without y": (fit({"a": X, "b": X}), "expected a pair (X, y), got ndarray"),
    "one node": (fit({"a": OWN}), "give at least two"),
    "validation that is None": (fit(validation=None), "the validation data: expected a pair"),
    "validation of one class": (fit(validation=(X, 0 * Y)), "add points of another class"),
    "labels that no node has": (fit(validation=(X, Y + 5)), "name the classes alike everywhere"),
    "a label too few": (with_a(labels=Y[:-1]), "give one label per point"),
    "indicators of classes": (with_a(labels=np.eye(2)[Y]), "give y.argmax(axis=1)"),
    "numbers as labels": (with_a(labels=X[:, 0]), "choose the model 'ridge'"),
    "another width": (with_a(X[:, :2]), "all must have the same features"),
    "missing values": (
        with_a(np.where(X > 1, np.nan, X)),
        "fill them in or leave these points out",
    ),
    "texts": (with_a(X.astype(str)), "encode text columns first"),
    "one row as a vector": (with_a(X[:, 0]), "must be rows of features or images"),
    "few rows": (with_a(X[:3], Y[:3]), "lower the minimum (minimum_rows"),
    "a misspelled method": (fit(method="bilevl"), "did you mean bilevel?"),
    "a class for a method": (
        fit(method=fedkin.Bilevel),
        "an object such as fedkin.Bilevel(cap=0.5)",
    ),
    "a misspelled model": (fit(model="logit"), "did you mean logistic?"),
    "a scikit-learn model": (fit(model=LogisticRegression()), "use model='logistic' or 'ridge'"),
    "a class for a model": (fit(model=LogisticRegression), "give an object of it"),
    "a cap of the paper": (fit(cap=1 / 3), "between 1/2 = 0.5 and 1"),
    "a cap in words": (fit(cap="big"), "cap must be a number above 0 and at most 1"),
    "steps that are none": (fit(steps=0), "steps must be a whole number from 1 on"),
    "a negative seed": (fit(seed=-1), "seed must be a whole number from 0 on"),
    "a setting of another library": (fit(lr=0.1), "choose one of preset, learning_rate"),
    "a misspelled setting": (fit(learnin_rate=0.1), "did you mean learning_rate?"),
    "a misspelled task": (fit(task="classify"), "choose classification or regression"),
    "a misspelled solver": (fit(solver="cgg"), "did you mean cg?"),
    "frames with texts": (
        fit({"a": (FRAME, Y), "b": (FRAME, Y)}, (FRAME, Y)),
        "column 's' has str values, not numbers; encode it first",
    ),
    "frames and arrays": (fit({"a": (FRAME[["x"]], Y), "b": NODES["b"]}), "give all as DataFrames"),
    "frames that differ": (
        fit({"a": (FRAME[["x"]], Y), "b": (FRAME[["x"]].add_suffix("2"), Y)}, (FRAME[["x"]], Y)),
        "all must have the same columns",
    ),
    "a table for the nodes": (fit(FRAME), "must be a dict of name: (X, y)"),
    "no such site column": (
        lambda: fedkin.fit_all(FRAME, site="z", label="x"),
        "no site column 'z'",
    ),
    "a site without a label": (lambda: fedkin.fit_all(FRAME, site="s"), "(label=…)"),
    "one owner for all": (lambda: fedkin.fit_all({"a": OWN}), "give at least two"),
    "a share of 30": (lambda: fedkin.fit_all(NODES, validation_fraction=30), "between 0 and 1"),
    "a file that is not there": (lambda: fedkin.load("nowhere.fedkin"), "check the path"),
    "a study that is not there": (
        lambda: fedkin.results("nowhere"),
        "give the --out of fedkin run",
    ),
    "advice on a network": (
        lambda: fedkin.advise(NODES, OWN, model="mlp"),
        "for others use fedkin.fit",
    ),
    "one fold": (lambda: fedkin.advise(NODES, OWN, folds=1), "folds must be a whole number from 2"),
    "contributions to nothing": (
        lambda: fedkin.contributions(None, NODES, OWN),
        "which comes first",
    ),
    "a cap no weights have": (
        lambda: fedkin.project_capped_simplex(np.ones(3), 0.1),
        "between 1/3",
    ),
    "a model that is no function": (
        lambda: fedkin.register_model("m", 3),
        "by a function of (classes",
    ),
    "a method that is no class": (lambda: fedkin.register(3), "derives from fedkin.Method"),
    "an owner and no sites": (lambda: fedkin.FederatedClassifier("a").fit(X, Y), "give sites"),
    "sites and no owner": (
        lambda: fedkin.FederatedClassifier().fit(X, Y, sites=["a", "b"] * 20),
        "owner is not given: choose one of a, b",
    ),
}
WITH_A_RESULT = {
    "rows of another width": (lambda result: result.predict(X[:, :2]), "give the same features"),
    "a row as a vector": (lambda result: result.predict(X[0]), "must be rows of features"),
    "a directory that is not there": (
        lambda result: result.save("/no/x"),
        "choose another directory",
    ),
    "a directory for a result": (lambda result: result.save("."), "name a file in it"),
    "a name that is too long": (lambda result: result.save("long" * 100), "cannot write long"),
    "a number for axes": (lambda result: result.plot_weights(3), "such as plt.gca(), or None"),
    "a figure for axes": (lambda result: result.plot_history(Figure()), "not Figure"),
    "a module of a linear model": (lambda result: result.module(), "use predict, or params"),
    "a score that is none": (
        lambda result: fedkin.contributions(result, NODES, OWN, score="auc"),
        "choose one of loss, accuracy",
    ),
    "other nodes": (
        lambda result: fedkin.contributions(result, {"y": OWN, "z": OWN}, OWN),
        "give the nodes that it was learned from",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_says_what_to_do(name):
    call, words = MISTAKES[name]
    with pytest.raises(fedkin.InputError, match=re.escape(words)) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", WITH_A_RESULT)
def test_the_message_about_a_result_says_what_to_do(name, result):
    call, words = WITH_A_RESULT[name]
    with pytest.raises(fedkin.InputError, match=re.escape(words)):
        call(result)
