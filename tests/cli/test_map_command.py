"""`fedkin map`, and tables with a site column, from the command line as a user runs them."""

import json

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError


def rows(direction, seed, count=70):
    draw = np.random.default_rng(seed)
    age, pressure = draw.normal(size=(2, count))
    outcome = np.where(3 * direction * age + 0.3 * draw.normal(size=count) > 0, "sick", "well")
    sex = draw.choice(["f", "m"], count)
    return pd.DataFrame(
        {"age": 50 + 10 * age, "pressure": 120 + pressure, "sex": sex, "outcome": outcome}
    )


SITES = {"bern": 1, "basel": 1, "chur": -1, "genf": -1}


@pytest.fixture
def tables(tmp_path):
    frames = {name: rows(sign, seed) for seed, (name, sign) in enumerate(SITES.items())}
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    whole = pd.concat([frame.assign(hospital=name) for name, frame in frames.items()])
    whole.to_csv(tmp_path / "all.csv", index=False)
    return whole


NODES = [part for name in SITES for part in ("--node", f"{name}.csv")]


def test_a_map_of_files_and_of_one_table_are_the_same(command, tables, tmp_path):
    answer = command(
        "map", *NODES, "--label", "outcome", "--test-fraction", 0.2, "--json", "--out", "files"
    )
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert found["schema"] == "fedkin.map/1"
    assert found["groups"] == [["bern", "basel"], ["chur", "genf"]]
    assert found["scored_on"] == "test"
    assert found["summary"]["bilevel"]["mean"] > found["summary"]["fedavg"]["mean"]
    answer = command(
        "map", "all.csv", "--site", "hospital", "--label", "outcome", "--test-fraction", 0.2, "--out", "one"
    )  # fmt: skip
    assert answer.status == 0, answer.err
    assert "group 1: bern, basel" in answer.out
    for name in ("matrix.csv", "scores.csv", "summary.csv", "groups.json"):
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "files" / name).read_text()
    loaded = fedkin.Collaboration.load(tmp_path / "one" / "everyone.fedkin")
    assert loaded.matrix.loc["bern"].to_dict() == pytest.approx(found["matrix"]["bern"])
    page = (tmp_path / "one" / "report.html").read_text()
    assert "Who learns with whom" in page
    assert "chur learns with genf" in page
    # Every node's result can predict, and has the classes' own names.
    tables.drop(columns=["outcome", "hospital"])[:5].to_csv(tmp_path / "new.csv", index=False)
    answer = command("predict", "one/owners/chur", "new.csv", "--json")
    assert answer.status == 0, answer.err
    assert {row["prediction"] for row in json.loads(answer.out)["predictions"]} <= {"sick", "well"}
    assert command("report", "one").status == 0


def test_fit_takes_an_owner_of_one_table(command, tables, tmp_path):
    common = ["--label", "outcome", "--json"]
    one = command(
        "fit", "all.csv", "--site", "hospital", "--owner", "genf", *common, "--out", "one"
    )
    assert one.status == 0, one.err
    files = command("fit", *NODES, "--target-node", "genf", *common, "--out", "files")
    assert json.loads(one.out)["weights"] == json.loads(files.out)["weights"]
    assert json.loads(one.out)["weights"]["bern"] < 0.01


def test_a_node_with_one_class_is_reported_and_kept(command, tables, tmp_path):
    frame = pd.read_csv(tmp_path / "bern.csv")
    frame.assign(outcome="sick").to_csv(tmp_path / "chur.csv", index=False)
    answer = command("map", *NODES, "--label", "outcome", "--json", "--out", "map")
    assert answer.status == 0, answer.err
    assert "node 'chur': all rows have the same 'outcome'" in " ".join(answer.err.split())
    assert "chur" in json.loads(answer.out)["matrix"]


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, ["--node", "bern.csv"], "there is one node only, 'bern'"),
        ({}, ["--node", "bern.csv", "--node", "bern.csv"], "two nodes are called 'bern'"),
        ({}, ["all.csv"], "'all.csv' has no option before it"),
        ({}, [], "there are no nodes"),
        ({}, ["all.csv", "--site", "clinic"], "has no column 'clinic'"),
        ({}, ["--site", "hospital"], "--site names a column of one table"),
        ({}, ["all.csv", "--site", "outcome"], "cannot be both the site and the label"),
        ({}, ["all.csv", "--site", "hospital", "--node", "bern.csv"], "not both"),
        ({"hospital": None}, ["all.csv", "--site", "hospital"], "280 of 280 rows have no value in the site"),
        ({"hospital": "bern"}, ["all.csv", "--site", "hospital"], "all rows have the site 'bern'"),
        ({}, ["all.csv", "--site", "hospital", "--validation-fraction", "0.001"], "too few to hold out"),
        ({}, ["all.csv", "--site", "hospital", "--drop", "hospital"], "cannot be left out with --drop"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_line(refused, tables, tmp_path, change, arguments, message):
    pd.read_csv(tmp_path / "all.csv").assign(**change).to_csv(tmp_path / "all.csv", index=False)
    line = refused("map", *arguments, "--label", "outcome", "--out", "map")
    assert message in line
    assert not (tmp_path / "map").exists()


def test_some_missing_sites_are_counted_and_placed(refused, tables, tmp_path):
    frame = pd.read_csv(tmp_path / "all.csv")
    frame.loc[[3, 8], "hospital"] = None
    frame.to_csv(tmp_path / "all.csv", index=False)
    line = refused("map", "all.csv", "--site", "hospital", "--label", "outcome", "--out", "map")
    assert "2 of 280 rows have no value in the site column 'hospital' (first: line 5)" in line


def test_too_few_rows_of_a_site_are_named(refused, tables, tmp_path):
    frame = pd.read_csv(tmp_path / "all.csv")
    extra = frame[:1].assign(hospital="tiny")
    pd.concat([frame, extra]).to_csv(tmp_path / "all.csv", index=False)
    line = refused("map", "all.csv", "--site", "hospital", "--label", "outcome", "--out", "map")
    assert "node 'tiny' has 1 row, fewer than the 10" in line
    line = refused(
        *("map", "all.csv", "--site", "hospital", "--label", "outcome", "--out", "map"),
        *("--minimum-rows", 1),
    )
    assert "node 'tiny' has 1 row: too few" in line


def test_an_earlier_map_is_replaced_only_if_asked(refused, tmp_path, tables):
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "matrix.csv").write_text("")
    line = refused("map", *NODES, "--label", "outcome", "--out", "map")
    assert "map is not empty" in line
    (tmp_path / "map" / "letter.txt").write_text("")
    line = refused("map", *NODES, "--label", "outcome", "--out", "map", "--force")
    assert "files that fedkin map did not write, such as letter.txt" in line


def test_a_frame_with_a_site_column_in_python(tables):
    frame = tables.assign(sex=(tables["sex"] == "f") * 1.0, age=(tables["age"] - 50) / 10)
    frame["pressure"] -= 120
    found = fedkin.fit_all(frame, site="hospital", label="outcome", steps=20, compare=())
    assert found.groups == (("bern", "basel"), ("chur", "genf"))
    with pytest.raises(InputError, match="say which column names the site"):
        fedkin.fit_all(frame)
    with pytest.raises(InputError, match="no site column 'clinic'"):
        fedkin.fit_all(frame, site="clinic", label="outcome")
    incomplete = frame.reset_index(drop=True)
    incomplete.loc[0, "hospital"] = None
    with pytest.raises(InputError, match="1 of 280 rows have no value in the site column"):
        fedkin.fit_all(incomplete, site="hospital", label="outcome")
    with pytest.raises(InputError, match="the columns sex are not numbers"):
        fedkin.fit_all(tables, site="hospital", label="outcome")
    with pytest.raises(InputError, match="site names a column of one table"):
        fedkin.fit_all({"a": ([[1.0]], [1])}, site="hospital")
