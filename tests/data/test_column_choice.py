"""Tables that differ: what is used, what counts as missing, and what is refused."""

import pytest

from fedkin.data.column_choice import check_new_table, choose_columns
from fedkin.errors import InputError

A, B, OWN = "node 'a'", "node 'b'", "the owner's table"


def choose(a, b, own, **more):
    return choose_columns({A: a, B: b, OWN: own}, [A, B], OWN, **more)


def test_the_owner_decides_which_columns_are_used():
    chosen = choose(["x", "y", "far"], ["y", "x"], ["y", "mine", "x"])
    assert chosen.used == ("x", "y")
    assert chosen.warnings == (
        f"the column 'far' is not used: {OWN} does not have it",
        "the column 'mine' is not used: no node has it",
    )


def test_the_order_of_columns_does_not_matter():
    assert choose(["x", "y"], ["y", "x"], ["y", "x"]) == (("x", "y"), ())


def test_tables_that_lack_the_same_are_named_together():
    (warning,) = choose(["x"], ["x", "y", "z"], ["x", "z", "y"]).warnings
    assert warning.startswith("node 'a' has no column 'y', 'z': they count as missing there")
    tables = {A: ["x"], B: ["x"], "node 'c'": ["x", "y"], OWN: ["x", "y"]}
    (warning,) = choose_columns(tables, [A, B, "node 'c'"], OWN).warnings
    assert warning.startswith("node 'a' and node 'b' have no column 'y': it counts as missing")


def test_if_all_are_owners_two_nodes_are_needed():
    tables = {A: ["x", "y", "only"], B: ["x"], "node 'c'": ["x", "y"]}
    chosen = choose_columns(tables, list(tables))
    assert chosen.used == ("x", "y")
    assert "node 'b' has no column 'y'" in chosen.warnings[0]
    assert chosen.warnings[1] == "the column 'only' is not used: only one node has it"


def test_a_name_that_is_close_is_named():
    (warning, _) = choose(["x", "weigth"], ["x", "weight"], ["x", "weight"]).warnings
    assert "is it called 'weigth' there?" in warning


def test_thousands_of_columns_fit_in_one_line():
    many = [f"gene {number}" for number in range(5000)]
    chosen = choose([*many, "x"], ["x"], [*many, "x"])
    (warning,) = chosen.warnings
    assert "'gene 4' and 4995 more: they count as missing" in warning
    assert len(warning) < 200


@pytest.mark.parametrize(
    ("tables", "more", "message"),
    [
        (
            (["x"], ["x", "y"], ["x", "y"]),
            {"strict": True},
            r"'y' is missing on node 'a'.*--drop y",
        ),
        ((["x", "z"], ["x"], ["x"]), {"strict": True}, "'z' is on node 'a' only; leave it out"),
        ((["x", "Age"], ["x", "age"], ["x", "age"]), {}, "has the column 'Age', and node 'b' and"),
        ((["x", "a_1"], ["x", "a 1"], ["x", "a 1"]), {}, "give both one name, or leave one out"),
        ((["u"], ["x", "u"], ["x"]), {}, "node 'a' has none of the columns that are used"),
        ((["u"], ["v"], ["w"]), {}, "no column in common besides the label"),
    ],
)
def test_what_is_refused(tables, more, message):
    with pytest.raises(InputError, match=message):
        choose(*tables, **more)


def test_new_tables():
    assert check_new_table("new", ["y", "x", "more"], ["x", "y"]) == []
    (warning,) = check_new_table("new", ["x"], ["x", "y"])
    assert warning.startswith("new has no column 'y': it counts as missing")
    for own, strict, message in (
        (["x"], True, "new has no column 'y': add it, or leave --strict out, and it counts"),
        ([], True, "no column 'x', 'y': add them, or leave --strict out, and they count"),
        (["x", "Y"], False, "new has the column 'Y', and the model 'y'"),
        (["u"], False, "new has none of the columns that are used"),
    ):
        with pytest.raises(InputError, match=message):
            check_new_table("new", own, ["x", "y"], strict=strict)
