"""Who was missing in which sum: kept within a step, also by another process, and forgotten after it."""

import numpy as np
import pytest

from fedkin.errors import InputError
from fedkin.federation.secure.book import SumBook

SHAPE = (2, 4)


def marks(*items):
    found = np.zeros(SHAPE, bool)
    for item in items:
        found[item] = True
    return found


def book(path, step=None):
    made = SumBook()
    made.keep(path)
    if step is not None:
        made.begin_step(step)
    return made


def test_a_step_that_is_begun_again_leaves_out_the_same_nodes_of_the_same_sums(tmp_path):
    path = tmp_path / "sums.json"
    first = book(path, 3)
    one, two = first.next_exchange(), first.next_exchange()
    first.note(one, "train", marks())
    assert not path.exists()
    first.note(two, "train", marks((0, 2), (1, 2), (1, 3)))
    again = book(path, 3)
    assert [again.next_exchange(), again.next_exchange()] == [one, two]
    np.testing.assert_array_equal(again.missing(two, "train", SHAPE), marks((0, 2), (1, 2), (1, 3)))
    assert not again.missing(one, "train", SHAPE).any()
    assert not again.missing(two, "other", SHAPE).any()
    # What is noted before the second process gets there does not erase it.
    again.note(one, "train", marks((0, 1)))
    third = book(path, 3)
    assert third.missing(one, "train", SHAPE)[0, 1]
    assert third.missing(two, "train", SHAPE)[1, 3]


def test_what_was_noted_is_for_one_step_only(tmp_path):
    path = tmp_path / "sums.json"
    first = book(path, 3)
    number = first.next_exchange()
    first.note(number, "train", marks((0, 2)))
    for step in (2, 4):
        other = book(path, step)
        assert not other.missing(other.next_exchange(), "train", SHAPE).any()
    # A run that starts over in the same process has no former step.
    same = book(path, 3)
    same.begin_step(4)
    same.begin_step(3)
    assert not same.missing(same.next_exchange(), "train", SHAPE).any()
    first.forget()
    assert not path.exists()
    first.forget()


def test_what_is_asked_before_the_first_step_has_a_record_too(tmp_path):
    path = tmp_path / "sums.json"
    first = book(path)
    first.note(first.next_exchange(), "train", marks((0, 2)))
    again = book(path)
    assert again.missing(again.next_exchange(), "train", SHAPE)[0, 2]
    again.begin_step(0)
    assert not again.missing(again.next_exchange(), "train", SHAPE).any()


@pytest.mark.parametrize("content", [b"", b"{}x", b'{"step": "3"}', b'{"nodes": {"a": [["0"]]}}'])
def test_a_damaged_file_is_not_passed_over(tmp_path, content):
    path = tmp_path / "sums.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="which nodes were missing"):
        book(path)


def test_numbers_that_are_none_of_the_federations_nodes_mean_nothing(tmp_path):
    path = tmp_path / "sums.json"
    path.write_bytes(b'{"step": 3, "nodes": {"[1, \\"train\\"]": [[-1, 2, 9], [], [1]]}}')
    made = book(path, 3)
    np.testing.assert_array_equal(made.missing(1, "train", SHAPE), marks((0, 2)))
