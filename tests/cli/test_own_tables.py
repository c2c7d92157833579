"""Tables as they come: each node with its own columns, in its own order."""

import json

import numpy as np
import pandas as pd
import pytest

import fedkin

NODES = [part for name in ("a", "b", "c") for part in ("--node", f"{name}.csv")]
FIT = ["fit", *NODES, "--validation", "own.csv", "--label", "sick", "--out", "out", "--force"]
MAP = ["map", *NODES, "--label", "sick", "--out", "out", "--force"]
ADVISE = ["advise", *NODES, "--own", "own.csv", "--label", "sick"]
ADVISE += ["--folds", "2", "--repeats", "1", "--out", "out", "--force"]


def table(seed, rows=40):
    random = np.random.default_rng(seed)
    age, weight = random.normal(50, 10, rows).round(1), random.normal(70, 9, rows).round(1)
    sick = np.where(random.normal(age - 50, 3) > 0, "yes", "no")
    return pd.DataFrame(
        {"age": age, "weight": weight, "sex": ["f", "m"] * (rows // 2), "sick": sick}
    )


@pytest.fixture
def write(tmp_path):
    def to_files(**changes):
        for seed, name in enumerate(("a", "b", "c", "own")):
            made = changes.get(name, lambda each: each)(table(seed))
            made.to_csv(tmp_path / f"{name}.csv", index=False)

    return to_files


def without(*names):
    return lambda each: each.drop(columns=list(names))


@pytest.mark.parametrize("asked", [FIT, MAP, ADVISE], ids=["fit", "map", "advise"])
def test_columns_that_a_node_lacks_count_as_missing(command, refused, write, asked):
    write(b=without("age", "sex"), c=lambda each: each[["sick", "sex", "weight", "age"]])
    answer = command(*asked, "--json")
    assert answer.status == 0, answer.err
    lacking = "node 'b' has no column 'age', 'sex': they count as missing there"
    assert answer.err.count(f"warning: {lacking}") >= 1
    found = json.loads(answer.out)
    assert any(warning.startswith(lacking) for warning in found["warnings"])
    assert found.get("columns", ["age", "weight", "sex"]) == ["age", "weight", "sex"]
    assert "'age' is missing on node 'b'" in refused(*asked, "--strict")


def test_one_table_with_semicolons_is_read_like_the_others(command, write, tmp_path):
    write()
    assert command(*FIT).status == 0
    expected = json.loads((tmp_path / "out/weights.json").read_text())
    table(1).to_csv(tmp_path / "b.csv", index=False, sep=";")
    assert command(*FIT).status == 0
    assert json.loads((tmp_path / "out/weights.json").read_text()) == expected


def test_numbers_with_commas_are_no_categories(refused, command, write):
    """Silently, they would be one category for each number."""

    def with_commas(each):
        return each.assign(stage=(each["age"] // 10).map("{:.1f}".format).str.replace(".", ","))

    changes = dict.fromkeys(("a", "b", "c", "own"), with_commas)
    write(**changes)
    line = refused(*FIT)
    assert "node 'a': column 'stage' has numbers with a comma, such as" in line
    assert "write 3.5, not 3,5" in line
    assert command(*FIT, "--categorical", "stage").status == 0


@pytest.mark.parametrize("asked", [FIT, MAP, ADVISE], ids=["fit", "map", "advise"])
def test_columns_that_only_one_node_has_are_not_used(command, write, asked):
    write(a=lambda each: each.assign(ward=["north", "south"] * 20))
    answer = command(*asked)
    assert answer.status == 0, answer.err
    assert "warning: the column 'ward' is not used: " in answer.err
    assert "columns used: age, weight, sex (f m)" in answer.out


def test_lacking_is_the_same_as_having_no_value(command, write, tmp_path):
    found = []
    for change in (without("age"), lambda each: each.assign(age=np.nan)):
        write(b=change)
        assert command(*FIT).status == 0
        found.append(fedkin.load(tmp_path / "out" / "model.fedkin"))
    lacking, empty = found
    assert lacking.weights == empty.weights
    assert (lacking.theta == empty.theta).all()


def test_contributions_of_nodes_that_lack_columns(command, write):
    write(b=without("sex"))
    answer = command(*FIT, "--contributions", "--json")
    assert answer.status == 0, answer.err
    nodes = json.loads(answer.out)["contributions"]["nodes"]
    assert sorted(each["node"] for each in nodes) == ["a", "b", "c"]


def test_predict_for_rows_that_lack_a_column(command, refused, write, tmp_path):
    write()
    assert command(*FIT).status == 0
    new = table(9)
    new.drop(columns=["weight", "sick"])[["sex", "age"]].to_csv(tmp_path / "new.csv", index=False)
    answer = command("predict", "out", "new.csv")
    assert answer.status == 0, answer.err
    assert "warning: the new table (new.csv) has no column 'weight': it counts as" in answer.err
    assert len(answer.out.splitlines()) == 41
    assert "no column 'weight': add it, or leave --strict out" in refused(
        "predict", "out", "new.csv", "--strict"
    )
    new[["sick"]].to_csv(tmp_path / "new.csv", index=False)
    assert "none of the columns that are used" in refused("predict", "out", "new.csv")
    new.rename(columns={"age": "AGE"}).to_csv(tmp_path / "new.csv", index=False)
    assert "has the column 'AGE', and the model 'age'" in refused("predict", "out", "new.csv")


def test_the_owner_and_the_test_table_may_lack_columns(command, write, tmp_path):
    write(own=without("sex"))
    table(8).drop(columns="age").to_csv(tmp_path / "test.csv", index=False)
    answer = command(*FIT, "--test", "test.csv")
    assert answer.status == 0, answer.err
    assert "columns used: age, weight\n" in answer.out
    assert "the column 'sex' is not used: the validation table does not have it" in answer.err
    assert "the test table has no column 'age': it counts as missing there" in answer.err
