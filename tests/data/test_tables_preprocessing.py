"""Federated preprocessing gives what one would compute on all rows together, without moving one."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data.columns import column_from_text
from fedkin.data.labels import binary_label, keep_labeled, split_rows
from fedkin.data.preprocessing import (
    Preprocessing,
    merge_summaries,
    transform,
    transform_label,
    unknown_categories,
)
from fedkin.data.summaries import TableSummary, summarize
from fedkin.data.table_federation import federate_owners
from fedkin.data.table_request import OwnersTables
from fedkin.data.tables import Table
from fedkin.errors import InputError


def table(owner="node 'a'", **columns) -> Table:
    made = {
        name: column_from_text([None if cell is None else str(cell) for cell in cells])
        for name, cells in columns.items()
    }
    rows = len(next(iter(made.values())))
    return Table(owner, made, np.arange(2, rows + 2), "line")


def agreed(
    nodes, validation, test=None, task="classification", categorical=(), strict=False
) -> Preprocessing:
    def answer(one):
        return summarize(one, "y", task, categorical)

    return merge_summaries(
        {name: answer(one) for name, one in nodes.items()},
        answer(validation),
        None if test is None else answer(test),
        "y",
        strict=strict,
    ).preprocessing


NUMBERS = st.lists(
    # So few digits that no part is a million deviations from the others, which is refused.
    st.one_of(st.none(), st.floats(-500, 500).map(lambda x: round(x, 2))),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(NUMBERS, min_size=1, max_size=5).filter(
        lambda parts: any(cell is not None for part in parts for cell in part)
    ),
    offset=st.sampled_from([0.0, 1e9]),
)
def test_mean_and_deviation_are_those_of_all_rows_together(parts, offset):
    shifted = [[None if x is None else offset + x for x in part] for part in parts]
    nodes = {
        f"n{i}": table(x=[None if x is None else repr(x) for x in part], y=[0] * len(part))
        for i, part in enumerate(shifted)
    }
    nodes["classes"] = table(x=["", ""], y=[0, 1])
    merged = agreed(nodes, table(x=[1, 2], y=[0, 1])).columns[0]
    together = np.array([x for part in shifted for x in part if x is not None])
    # The values themselves are only known to offset * 1e-16.
    tolerance = 1e-9 + 1e-15 * offset
    np.testing.assert_allclose(merged.mean, together.mean(), rtol=1e-12, atol=tolerance)
    np.testing.assert_allclose(
        merged.standard_deviation, together.std(), rtol=1e-9, atol=10 * tolerance
    )


def test_a_summary_does_not_grow_with_the_rows_and_survives_json():
    few = summarize(table(x=[1, 2.5], c=["u", "v"], y=[0, 1]), "y")
    many = summarize(table(x=[1, 2.5] * 500, c=["u", "v"] * 500, y=[0, 1] * 500), "y")
    assert len(many.model_dump_json()) < len(few.model_dump_json()) + 20
    assert TableSummary.model_validate_json(many.model_dump_json()) == many


def test_transform_standardizes_imputes_and_indicates():
    nodes = {
        "a": table(x=[1, 2, None], c=["u", "v", "u"], constant=[5, 5, 5], y=["no", "yes", "no"]),
        "b": table(x=[3, 6, 6], c=["w", None, "u"], constant=[5, 5, 5], y=["no", "yes", "no"]),
    }
    validation = table(x=[None, 4], c=["new", "v"], constant=[5, 6], y=["yes", "no"])
    preprocessing = agreed(nodes, validation)
    pooled = np.array([1, 2, 3, 6, 6])
    standard = (np.array([1, 2, pooled.mean()]) - pooled.mean()) / pooled.std()
    expected = np.column_stack([standard, [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]], np.zeros(3)])
    np.testing.assert_allclose(transform(nodes["a"], preprocessing), expected, rtol=1e-6)
    np.testing.assert_array_equal(
        transform(validation, preprocessing)[:, 1:5], [[0, 0, 0, 1], [0, 1, 0, 0]]
    )
    assert preprocessing.feature_names == [
        "x",
        "c=u",
        "c=v",
        "c=w",
        "c missing or other",
        "constant",
    ]
    np.testing.assert_array_equal(transform_label(nodes["a"], preprocessing), [0, 1, 0])
    assert unknown_categories(validation, preprocessing) == {"c": ["new"]}


def test_thousands_of_columns_are_described_in_one_short_line():
    wide = table(**{f"gene{number}": [1, 2] for number in range(1234)}, y=[0, 1])
    described = agreed({"a": wide}, wide).described_columns
    assert described.startswith("gene0, gene1, ")
    assert described.endswith("gene49 and 1,184 more")


def test_validation_and_test_rows_do_not_move_the_statistics():
    nodes = {"a": table(x=[0, 2], c=["u", "v"], y=[0, 1])}
    near = agreed(nodes, table(x=[0, 2], c=["u", "v"], y=[0, 1]))
    far = agreed(
        nodes, table(x=[90, 91], c=["p", "q"], y=[0, 1]), table(x=[7, 7], c=["r", "r"], y=[1, 0])
    )
    assert near == far


def test_one_spelling_of_numbers_as_categories_and_classes():
    nodes = {
        "a": table(thal=["6.0", "3.0"], y=["0", "1"]),
        "b": table(thal=["6", "fixed"], y=["0.0", "01"]),
    }
    preprocessing = agreed(nodes, nodes["a"], categorical=("thal",))
    assert preprocessing.columns[0].categories == ("3", "6", "fixed")
    assert preprocessing.label.classes == ("0", "1")
    np.testing.assert_array_equal(transform_label(nodes["b"], preprocessing), [0, 1])


def test_classes_that_are_numbers_are_in_order_of_size():
    nodes = {"a": table(x=[1, 2, 3], y=[10, 9, 2]), "b": table(x=[1, 2, 3], y=[10, 9, 2])}
    assert agreed(nodes, nodes["a"]).label.classes == ("2", "9", "10")


def test_regression_standardizes_the_label():
    nodes = {"a": table(x=[1, 2], y=[10, 20]), "b": table(x=[1, 5], y=[30, 60])}
    preprocessing = agreed(nodes, nodes["a"], task="regression")
    values = np.concatenate([transform_label(n, preprocessing) for n in nodes.values()])
    np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-6)


def test_a_column_without_a_value_on_any_node_is_left_out():
    nodes = {"a": table(x=[1, 2], empty=["", ""], y=[0, 1])}
    preprocessing = agreed(nodes, table(x=[1, 2], empty=["u", "v"], y=[0, 1]))
    assert [column.name for column in preprocessing.columns] == ["x"]


def test_a_column_empty_on_one_node_takes_the_kind_of_the_others():
    nodes = {
        "a": table(c=["", ""], x=[1, 2], y=[0, 1]),
        "b": table(c=["u", "v"], x=["", ""], y=[0, 1]),
    }
    preprocessing = agreed(nodes, nodes["a"])
    np.testing.assert_allclose(
        transform(nodes["a"], preprocessing), [[0, 0, 1, -1], [0, 0, 1, 1]], rtol=1e-6
    )


def test_saved_preprocessing_transforms_alike(tmp_path):
    nodes = {"a": table(x=[1, 1 / 3], c=["ü", "v"], y=["ja", "nein"])}
    preprocessing = agreed(nodes, nodes["a"])
    path = tmp_path / "preprocessing.json"
    preprocessing.save(path)
    assert Preprocessing.load(path) == preprocessing
    for damaged in ("", "[]", "{}", path.read_text()[:-20], path.read_text().replace("mean", "m")):
        (tmp_path / "damaged.json").write_text(damaged)
        with pytest.raises(InputError, match=r"damaged\.json is damaged"):
            Preprocessing.load(tmp_path / "damaged.json")
    assert json.loads(path.read_text())["format"] == "fedkin preprocessing 1"


GOOD = {"x": [1, 2], "c": ["u", "v"], "y": ["no", "yes"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": ["old", "2"]},
            "column 'x' has text on node 'b' .*'old'.* but numbers on node 'a'",
        ),
        ({"x": None}, r"column 'x' is missing on node 'b'.*--drop x"),
        ({"z": [1, 2]}, r"column 'z' is on node 'b' only.*--drop z"),
        (
            {"x": None, "X": [1, 2]},
            r"'x' is missing on node 'b' \(is it called 'X' there\?\)",
        ),
        ({"y": ["no", "yess"]}, "label 'yess' is on node 'b' but on no other.*'no', 'yes'"),
    ],
)
def test_nodes_that_do_not_fit_each_other(change, message):
    columns = {name: cells for name, cells in {**GOOD, **change}.items() if cells is not None}
    nodes = {"a": table(**GOOD), "b": table("node 'b'", **columns), "c": table(**GOOD)}
    with pytest.raises(InputError, match=message):
        agreed(nodes, table(**GOOD), strict=True)


def test_validation_and_test_that_do_not_fit():
    nodes = {"a": table(**GOOD), "b": table(**GOOD)}
    with pytest.raises(InputError, match="'maybe' is on the validation table but on no"):
        agreed(nodes, table(**{**GOOD, "y": ["maybe", "no"]}))
    with pytest.raises(InputError, match="'maybe' is on the test table but on no"):
        agreed(nodes, table(**GOOD), table(**{**GOOD, "y": ["maybe", "no"]}))
    with pytest.raises(InputError, match="validation table has only the class 'no'"):
        agreed(nodes, table(**{**GOOD, "y": ["no", "no"]}))
    with pytest.raises(InputError, match="column 'x' has text on the validation table"):
        agreed(nodes, table(**{**GOOD, "x": ["one", "2"]}))


def test_one_class_only():
    nodes = {"a": table(x=[1, 2], y=["no", "no"])}
    with pytest.raises(InputError, match="'y' is 'no' in every row of every table"):
        agreed(nodes, nodes["a"])
    constant = {"a": table(x=[1, 2], y=[3, 3])}
    with pytest.raises(InputError, match="'y' is 3 in every row of every node"):
        agreed(constant, constant["a"], task="regression")


def test_categories_that_differ_in_case_only_are_mentioned():
    nodes = {
        "a": table(sex=["f", "m"], crp=["<5", ">5"], y=[0, 1]),
        "b": table(sex=["F", "m"], crp=["<5", "5"], y=[0, 1]),
    }
    summaries = {name: summarize(each, "y") for name, each in nodes.items()}
    (warning,) = merge_summaries(summaries, summaries["a"], None, "y").warnings
    assert "column 'sex' has 'F', 'f' as different categories" in warning


def test_labels_that_are_no_classes_and_columns_that_are_no_categories():
    measured = table(x=range(20), y=[i + 0.5 for i in range(20)])
    with pytest.raises(InputError, match=r"20 different values.*--task regression"):
        summarize(measured, "y")
    with pytest.raises(InputError, match="is 'tall' in line 3; regression needs numbers"):
        summarize(table(x=[1, 2], y=["1.5", "tall"]), "y", "regression")
    people = table(name=[f"p{i}" for i in range(150)], y=[0, 1] * 75)
    with pytest.raises(InputError, match=r"150 different texts.*--drop name"):
        summarize(people, "y")
    days = [str(day) for day in np.arange("2024-01-01", "2024-05-30", dtype="datetime64[D]")]
    visits = table(seen=days, y=[0, 1] * 75)
    with pytest.raises(InputError, match=r"'seen' holds dates, such as '2024-01-01'"):
        summarize(visits, "y")
    both = table(name=[f"p{i}" for i in range(150)], age=range(150), seen=days, y=[0, 1] * 75)
    with pytest.raises(
        InputError, match=r"150 different.*'seen' cannot be used either \(--drop name,seen leaves"
    ):
        summarize(both, "y")
    slip = table(x=[*map(str, range(150)), "4O"], y=[0, 1, 0] * 50 + [1])
    with pytest.raises(InputError, match="'x' has numbers, but '4O' in line 152"):
        summarize(slip, "y")
    with pytest.raises(InputError, match="no column besides the label"):
        summarize(table(y=[0, 1]), "y")


def test_new_rows_that_do_not_fit():
    preprocessing = agreed({"a": table(**GOOD)}, table(**GOOD))
    assert transform(table("new.csv", x=[1.5]), preprocessing).tolist() == [[0, 0, 0, 1]]
    with pytest.raises(InputError, match="'x' has 'tall' in line 3, but the nodes have numbers"):
        transform(table("new.csv", x=[1, "tall"], c=["u", "u"]), preprocessing)
    with pytest.raises(InputError, match=r"million standard deviations.*another unit"):
        transform(table("new.csv", x=[1e30], c=["u"]), preprocessing)


def test_a_column_in_another_unit_at_one_node_is_refused():
    """Pooled with it, everyone else's values would have the same standardized value."""
    nodes = {name: table(x=[1, 2, 3], small=[0, 0, 1], y=[0, 1, 0]) for name in ("meters", "feet")}
    nodes["ångström"] = table(x=[1e10, 2e10, 3e10], small=[0, 0, 3], y=[0, 1, 0])
    message = r"node 'ångström': column 'x' is 2e\+10 on average.*others' mean 2; is it in another"
    with pytest.raises(InputError, match=message):
        agreed(nodes, nodes["meters"])
    del nodes["ångström"]
    nodes["constant"] = table(x=[7, 7, 7], small=[0, 0, 0], y=[0, 1, 0])
    assert len(agreed(nodes, nodes["meters"]).columns) == 2


def test_rows_without_a_label_are_left_out():
    kept = keep_labeled(table(x=[1, 2, 3], y=["a", "?", "b"]), "y")
    np.testing.assert_array_equal(kept.columns["x"], [1, 3])
    assert kept.where(1) == "line 4"
    with pytest.raises(InputError, match="no row has a value in the label column 'y'"):
        keep_labeled(table(x=[1], y=[None]), "y")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(">0", "nyy"), (">= 2", "nny"), ("<2", "yyn"), ("<=0", "ynn"), ("1", "nyn"), ("1.0", "nyn")],
)
def test_binary_label(rule, expected):
    made = binary_label(table(x=[1, 2, 3], y=[0, 1, 2]), "y", rule)
    assert [cell[0] for cell in made.columns["y"]] == list(expected)


def test_binary_label_of_texts_and_of_missing_values():
    made = binary_label(table(x=[1, 2, 3], y=["sick", None, "well"]), "y", "sick")
    assert list(made.columns["y"]) == ["yes", None, "no"]
    with pytest.raises(InputError, match="contains text, so it cannot be > 0"):
        binary_label(made, "y", ">0")
    with pytest.raises(InputError, match="write, for example, '>0'"):
        binary_label(made, "y", "> some")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(4, 40), min_size=2, max_size=4),
    fractions=st.sampled_from([(0.3,), (0.25, 0.25)]),
    seed=st.integers(0, 5),
)
def test_split_is_a_partition_with_every_class_in_proportion(sizes, fractions, seed):
    labels = [f"class {i}" for i, size in enumerate(sizes) for _ in range(size)]
    whole = table(x=range(len(labels)), y=labels)
    parts = split_rows(whole, "y", fractions, seed, stratify=True)
    together = np.concatenate([part.columns["x"] for part in parts])
    np.testing.assert_array_equal(np.sort(together), np.arange(len(labels)))
    for part, fraction in zip(parts, fractions, strict=False):
        for i, size in enumerate(sizes):
            held = np.count_nonzero(part.columns["y"] == f"class {i}")
            assert abs(held - fraction * size) <= 2
    again = split_rows(whole, "y", fractions, seed, stratify=True)
    np.testing.assert_array_equal(parts[0].columns["x"], again[0].columns["x"])


def test_split_that_leaves_nothing():
    whole = table(x=[1, 2], y=[0, 1])
    for fractions in [(0.0,), (1.0,), (0.5, 0.5), (-0.1,), (float("nan"),)]:
        with pytest.raises(InputError, match="between 0 and 1"):
            split_rows(whole, "y", fractions, 0, stratify=True)
    with pytest.raises(InputError, match="2 rows: too few"):
        split_rows(whole, "y", (0.1,), 0, stratify=True)


def test_the_rows_of_an_owner_who_trains_decide_how_columns_are_scaled():
    nodes = {"a": summarize(table(x=[0, 2], z=[None, None], y=[0, 1]), "y", "classification", ())}
    owner = summarize(table(x=[4, 6], z=[1, 3], y=[0, 1]), "y", "classification", ())
    judged = merge_summaries(nodes, owner, None, "y").preprocessing
    trained = merge_summaries(nodes, owner, None, "y", owner_trains=True).preprocessing
    assert [column.name for column in judged.columns] == ["x"]
    assert [column.name for column in trained.columns] == ["x", "z"]
    assert (judged.columns[0].mean, trained.columns[0].mean) == (1, 3)


def test_few_rows_held_out_do_not_make_a_column_identify_them():
    """Eight wards in forty rows identify nobody, whatever part of the rows is looked at."""
    wards = [*"ABCDEFGH"] * 5
    labels = [0, 0, 0, 1, 1, 1, 0, 1] * 5

    def part(first, last, **more):
        own = {name: cells[first:last] for name, cells in more.items()}
        return table(ward=wards[first:last], y=labels[first:last], **own)

    def federated(**more):
        own = OwnersTables(part(16, 40, **more), part(0, 8, **more), part(8, 16, **more))
        return federate_owners({"a": own, "b": own}, "y")

    assert len(federated().nodes["a"].validation.labels) == 8
    with pytest.raises(InputError, match="'person' has 40 different texts in 40 rows"):
        federated(person=[f"name {number}" for number in range(40)])
