"""A node's check of what the center says was agreed on."""

import numpy as np
import pytest

from fedkin.data.agreement import MOST_AGREED_CATEGORIES, check_agreement
from fedkin.data.columns import column_from_text
from fedkin.data.preprocessing import Preprocessing, merge_with_judges, transform
from fedkin.data.summaries import summarize
from fedkin.data.tables import Table
from fedkin.errors import InputError

LARGEST = 10.0


def table(ages, sites, outcomes, days):
    columns = {
        "age": column_from_text([f"{age}" for age in ages]),
        "site": column_from_text(list(sites)),
        "outcome": column_from_text(list(outcomes)),
        "days": column_from_text([f"{each}" for each in days]),
    }
    return Table("node 'bern'", columns, np.arange(1, len(ages) + 1), "row")


ROWS = 40
RANDOM = np.random.default_rng(0)
OWN = table(
    RANDOM.integers(20, 90, ROWS),
    RANDOM.choice(["left", "right"], ROWS),
    RANDOM.choice(["ill", "well"], ROWS),
    RANDOM.integers(1, 30, ROWS),
)
SUMMARY = summarize(OWN, "outcome")
AGREED = merge_with_judges({"bern": SUMMARY}, {}, "outcome").preprocessing.model_dump()


def check(agreed=AGREED, own=SUMMARY, missing=None, label="outcome", parts=None, strict=False):
    summaries = {"summary": own} | (parts or {})
    check_agreement(
        Preprocessing.model_validate(agreed),
        summaries,
        label,
        missing or {},
        LARGEST,
        strict=strict,
    )


def changed(name, **more):
    """What was agreed, with a change of one column."""
    columns = [own | more if own["name"] == name else own for own in AGREED["columns"]]
    return AGREED | {"columns": columns}


def numbers(name, mean, deviation):
    return changed(name, mean=mean, standard_deviation=deviation)


def categories(name, values):
    column = {"kind": "categorical", "name": name, "categories": values}
    columns = [column if own["name"] == name else own for own in AGREED["columns"]]
    return AGREED | {"columns": columns}


def test_what_honest_nodes_agree_on_passes():
    check()
    check(
        AGREED | {"columns": AGREED["columns"][:1]}
    )  # a column without a value elsewhere is left out
    check(categories("site", ["left", "right", "middle"]))  # which another node has
    check(AGREED | {"missing_codes": {"days": 0.0}}, missing={"days": 0.0})


@pytest.mark.parametrize(
    ("agreed", "words"),
    [
        (categories("age", ["50", "51"]), "column of numbers"),
        (AGREED | {"columns": [*AGREED["columns"], AGREED["columns"][0]]}, "2 times"),
        (AGREED | {"missing_codes": {"age": 50.0}}, "missing value"),
        (AGREED | {"label": AGREED["label"] | {"name": "site"}}, "label is"),
        (AGREED | {"label": AGREED["label"] | {"classes": ("ill", "dead")}}, "not among"),
        (AGREED | {"label": AGREED["label"] | {"classes": ("ill", "well", "ill")}}, "twice"),
        (
            categories("site", [f"{n}" for n in range(MOST_AGREED_CATEGORIES + 1)]),
            "1,001 categories",
        ),
        (
            AGREED
            | {
                "label": {
                    "kind": "quantity",
                    "name": "outcome",
                    "mean": 0.0,
                    "standard_deviation": 1.0,
                }
            },
            "class here",
        ),
    ],
)
def test_what_they_cannot_have_agreed_on_does_not(agreed, words):
    with pytest.raises(InputError, match=words):
        check(agreed)


def test_a_column_that_the_node_lacks_is_missing_there_unless_its_owner_is_strict():
    column = {"kind": "numeric", "name": "weight", "mean": 70.0, "standard_deviation": 9.0}
    lacking = AGREED | {"columns": [*AGREED["columns"], column]}
    check(lacking)
    matrix = transform(OWN, Preprocessing.model_validate(lacking))
    assert not matrix[:, -1].any()
    with pytest.raises(InputError, match="no column 'weight' here"):
        check(lacking, strict=True)
    with pytest.raises(InputError, match="none of the columns"):
        check(AGREED | {"columns": [column]})


def test_the_label_is_never_a_feature():
    for column in (
        {"kind": "categorical", "name": "outcome", "categories": ("ill", "well")},
        {"kind": "numeric", "name": "outcome", "mean": 0.0, "standard_deviation": 1.0},
    ):
        with pytest.raises(InputError, match="as a feature"):
            check(AGREED | {"columns": [*AGREED["columns"], column]})


def test_a_text_is_no_number():
    column = {"kind": "numeric", "name": "site", "mean": 0.0, "standard_deviation": 1.0}
    columns = [column if own["name"] == "site" else own for own in AGREED["columns"]]
    with pytest.raises(InputError, match="of categories here"):
        check(AGREED | {"columns": columns})


@pytest.mark.parametrize("classes", [("1", "2"), tuple(f"{n}" for n in range(4001))])
def test_a_quantity_is_not_divided_into_classes(classes):
    own = summarize(OWN, "age", "regression")
    label = {"kind": "classes", "name": "age", "classes": classes}
    columns = [each for each in AGREED["columns"] if each["name"] != "age"]
    with pytest.raises(InputError, match="number here"):
        check(AGREED | {"columns": columns, "label": label}, own=own, label="age")


@pytest.mark.parametrize(
    ("mean", "deviation", "fits"),
    [
        (55.0, 20.0, True),
        (55.0, 2.2, True),
        (55.0, 1.5, False),  # larger than ten deviations of a column of 20
        (0.0, 6.2, True),
        (0.0, 5.0, False),
        (-1e9, 1e9, True),  # squashed: nothing is seen of it
        (-1e9, 1e3, False),
        (1e308, 1e300, False),
        (1e-300, 1e-300, False),
        (5.0, 0.0, True),  # becomes zero
    ],
)
def test_a_scale_is_one_that_honest_nodes_can_have(mean, deviation, fits):
    agreed = numbers("age", mean, deviation)
    if fits:
        check(agreed)
        matrix = transform(OWN, Preprocessing.model_validate(agreed))
        assert np.sqrt(np.mean(matrix[:, 0] ** 2)) <= LARGEST
    else:
        with pytest.raises(InputError, match="largest-spread"):
            check(agreed)


def test_the_bound_is_that_of_the_worst_honest_federation():
    """One node of 40 rows far from 40 x 99 rows elsewhere, all alike: the mean square is just below 100."""
    elsewhere = [f"{25 + row % 2}" for row in range(99 * ROWS)]
    far = [f"{10_000 + row % 2}" for row in range(ROWS)]
    rest = {"site": "left", "outcome": "ill", "days": "3"}

    def summary(ages):
        columns = {name: column_from_text([text] * len(ages)) for name, text in rest.items()}
        columns |= {"age": column_from_text(ages)}
        columns["outcome"] = column_from_text(["ill", "well"] * (len(ages) // 2))
        return summarize(Table("t", columns, np.arange(len(ages)), "row"), "outcome")

    one = summary(far)
    agreed, _ = merge_with_judges({"far": one, "rest": summary(elsewhere)}, {}, "outcome")
    (age,) = [column for column in agreed.columns if column.name == "age"]
    assert ((10_000.5 - age.mean) / age.standard_deviation) ** 2 == pytest.approx(99, rel=1e-3)
    check_agreement(agreed, {"summary": one}, "outcome", {}, LARGEST)


def test_rows_that_are_held_out_are_checked_too():
    far = table([1e7] * ROWS, ["left", "right"] * 20, ["ill", "well"] * 20, range(ROWS))
    with pytest.raises(InputError, match="largest-spread"):
        check(parts={"validation": summarize(far, "outcome")})
