"""The tables of everyone's question are made of results.csv, and say what it says."""

import pandas as pd
import pytest

from reproduction.everyone.results import RESULTS, TABLES, add_results, tables


def rows(method, accuracies, **more):
    return pd.DataFrame(
        {
            "cell": "digits, two groups",
            "model": "logistic",
            "method": method,
            "seed": 0,
            "owner": [f"node-{place}" for place in range(len(accuracies))],
            "test_points": [10, 30],
            "accuracy": accuracies,
            "share_in_group": None,
            "groups_found": None,
            "own_synchronizations": 5,
            "synchronizations": 6,
            "megabytes": 1.0,
            "seconds": 2.0,
            **more,
        }
    )


def test_the_tables_are_those_of_the_results():
    assert tables(pd.read_csv(RESULTS)) == TABLES.read_text(encoding="utf-8")


def test_a_table_summarizes_over_nodes():
    known = add_results(rows("bilevel", [0.9, 0.7]), rows("local", [0.5, 0.8]))
    lines = tables(known).splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:]] == ["local", "bilevel"]
    mean, worst, tenth, by_points, gain, lose = (part.strip() for part in lines[5].split("|")[2:8])
    assert (mean, worst, tenth, by_points) == ("0.800", "0.700", "0.720", "0.750")
    assert (gain, lose) == ("1.0", "1.0")


def test_a_run_that_was_repeated_replaces_the_first():
    found = add_results(rows("local", [0.5, 0.8]), rows("local", [0.6, 0.8]))
    assert found["accuracy"].tolist() == [0.6, 0.8]


def test_shares_and_groups_are_stated():
    known = rows("bilevel", [0.9, 0.7], share_in_group=[1.0, 0.9], groups_found=True)
    (sentence,) = (line for line in tables(known).splitlines() if line.startswith("Share"))
    assert "0.9500 in the mean, 0.9000 at least" in sentence
    assert "exactly in 1 of 1 runs" in sentence


@pytest.mark.parametrize("column", ["accuracy", "share_in_group"])
def test_shares_lie_between_zero_and_one(column):
    known = pd.read_csv(RESULTS)[column].dropna()
    assert known.between(0, 1 + 1e-6).all()
