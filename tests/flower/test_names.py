"""The names of nodes: that of the registered key counts, and none steers a terminal."""

import logging

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import Error, Message

from fedkin.errors import InputError
from fedkin.flower.discovery import describe_nodes, read_description
from fedkin.flower.messenger import Messenger, Response, _read
from fedkin.flower.wire import Parcel, Refusal
from flower.fake_grid import FakeGrid
from flower.test_engine import federation
from flower.trials import NAMES, settings


def describe(grid, wanted=3):
    return describe_nodes(Messenger(grid, patience=0.02, interval=0.01), wanted, 0.3)


def grid_of(*names, **registered):
    grid = FakeGrid([settings(name) for name in names])
    grid.registered = {name: name for name in names} | registered
    return grid


def test_nodes_have_the_names_of_their_keys():
    assert [node.name for node in describe(grid_of(*NAMES))] == sorted(NAMES)


def test_a_registered_key_cannot_take_the_name_of_another(caplog):
    """The node itself is not connected yet: its place stays free."""
    grid = grid_of(*NAMES, **{"majority-2": "stranger"})
    with caplog.at_level(logging.WARNING), pytest.raises(InputError) as caught:
        describe(grid)
    sentence = "the node that is registered as stranger calls itself 'majority-2' and is refused"
    assert "2 of 3 nodes are ready" in str(caught.value)
    assert sentence in str(caught.value)
    assert "--name stranger" in str(caught.value)
    assert sentence in caplog.text


def test_an_impostor_beside_the_node_itself_is_left_out():
    grid = grid_of(*NAMES)
    grid.settings[200] = settings("majority-2")
    names = grid.get_nodes()

    def nodes():
        for node in names:
            node.name = "stranger" if node.node_id == 200 else node.name
        return names

    grid.get_nodes = nodes
    assert [node.node for node in describe(grid) if node.name == "majority-2"] != [200]


def test_an_impostor_does_not_return_in_place_of_a_lost_node():
    grid = grid_of(*NAMES)
    over_flower = federation(grid)
    over_flower.present[2] = False
    del grid.settings[102]
    grid.settings[200] = settings("majority-2")
    grid.registered["majority-2"] = "stranger"
    over_flower.begin_step(1)
    assert not over_flower.present[2]
    assert any("registered as stranger" in note for note in over_flower.end_step())


def test_a_job_for_three_nodes_does_not_run_with_four():
    grid = grid_of(*NAMES, "majority-3")
    grid.settings[103] |= {"majority-nodes": 3}
    with pytest.raises(
        InputError, match=r"4 nodes are connected .*, but the job is for 3: make it"
    ):
        describe(grid)


def description(name):
    return Response(Parcel({"name": name, "summary": "", "shape": "8,8"}))


@pytest.mark.parametrize("name", ["n1\x1b[2J", "a\nb", "..", "", "superlink", "x" * 41, "a/b"])
def test_a_name_that_is_none_is_refused(name):
    """Where keys are not registered, a node has the name that it gives itself."""
    found = read_description(5, description(name), registered="")
    assert isinstance(found, str)
    assert found.isprintable()
    assert read_description(5, description("n1"), registered="").name == "n1"


def test_what_a_node_says_of_an_error_does_not_steer_the_terminal():
    grid = grid_of("minority-1")
    describe(grid, 1)
    error = Error(int(Refusal.INVALID), "sorry \x1b[2J\x9b2J\u202e")
    response = _read(Message(error, reply_to=grid.sent[0]), 0)
    assert response.fault.isprintable()
    assert "sorry \\x1b[2J\\x9b2J" in response.fault
