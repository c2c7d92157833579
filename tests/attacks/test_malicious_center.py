"""What a malicious center got out of a node, and gets no longer. docs/security.md has the figures."""

import pytest

from attacks.malicious_center import ATTACKS, run
from attacks.victim import SlopesOnly

NOTHING = {"rows": 0, "labels": 0, "values": 0, "extremes": 0}


def found_by(attack, tmp_path, **more):
    found = run(attack, tmp_path, state=str(tmp_path / "state"), **more)
    return found, {name: getattr(found, name) for name in NOTHING}


@pytest.mark.parametrize(
    "attack",
    [
        "rows_by_seeds",
        "values_by_categories",
        "labels_by_feature",
        "extremes_by_refusals",
        "rows_by_missing_codes",
    ],
)
def test_an_attack_finds_nothing_and_sees_one_wording(attack, tmp_path):
    found, known = found_by(attack, tmp_path)
    assert known == NOTHING
    assert len(found.refusals) <= 1


def test_where_the_center_may_decide_what_is_drawn_the_same_attack_finds_every_row(tmp_path):
    """So the attack is a real one, and a trial's opt-out is not for other people's data."""
    found, known = found_by("rows_by_seeds", tmp_path, reproducible=True)
    assert known == {"rows": 60, "labels": 60, "values": 0, "extremes": 0}
    assert found.requests < 150


def test_chosen_models_still_tell_a_few_rows_apart(tmp_path):
    """Not covered, but bounded by the norm of models: rows that are far from all others are found."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    bounded, _ = found_by("rows_by_chosen_models", tmp_path / "one")
    free, _ = found_by("rows_by_chosen_models", tmp_path / "two", **{"largest-norm": 1e5})
    assert bounded.rows <= 6
    assert free.rows >= 50


MASKED = {"plain-sums": False}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_node_that_shows_no_vectors_gives_no_row_away(attack, tmp_path):
    _, known = found_by(attack, tmp_path, **MASKED)
    assert known == NOTHING


def test_what_is_left_to_a_center_that_gets_no_vectors_are_numbers(tmp_path):
    """Not covered either: slopes are components of a gradient, and bounded like it by the norm of models."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    plain, _ = found_by("rows_by_chosen_models", tmp_path / "one")
    slopes, _ = found_by("rows_by_chosen_models", tmp_path / "two", center=SlopesOnly, **MASKED)
    assert slopes.rows == plain.rows
    assert slopes.requests == plain.requests
