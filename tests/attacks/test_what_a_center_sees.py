"""The attacks of examples/what_a_center_sees: plain replies give rows and labels away, masked ones do not."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from attacks.summed_center import attack as attack_sums

EXAMPLE = Path(__file__).parents[2] / "examples/what_a_center_sees/what_a_center_sees.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("what_a_center_sees", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["what_a_center_sees"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scene(example):
    """The node attacked has four digits whose labels no other of its digits has, and two pairs."""
    found = example.Scene.draw(1)
    assert np.bincount(found.nodes[0][1]).tolist() == [1, 1, 0, 0, 0, 2, 1, 2, 1]
    return found


@pytest.fixture(scope="module")
def start(scene):
    return np.zeros(scene.objective.size)


EQUAL = np.full(5, 1 / 5)


def test_a_plain_reply_gives_all_labels_and_single_digits_away(example, scene, start):
    loot = example.attack(scene, start, example.plain_reply(scene, start, EQUAL), 1)
    assert loot.labels == 8
    assert loot.rows >= 4
    assert loot.error < example.guess(scene, 1).error / 2


def test_a_masked_reply_gives_no_more_than_guessing(example, scene, start):
    nodes = example.Watched(scene)
    nodes.sum(start, EQUAL)
    loot = example.attack(scene, start, nodes.words_as_reply(), 1)
    assert loot.rows == 0
    assert loot.labels <= 4  # half of them by chance once in some hundred times
    assert loot.error > 0.8 * example.guess(scene, 1).error


def test_a_center_that_leaves_a_node_out_of_a_second_sum_has_its_reply(example, scene, start):
    """What secure sums do not prevent, and docs/security.md says so."""
    found = example.difference(example.Watched(scene), start, EQUAL)
    truth = example.plain_reply(scene, start, EQUAL)
    np.testing.assert_allclose(found, truth, atol=1e-4)


def test_noise_protects_even_then(example, scene, start):
    granted = example.Privacy(example.EPSILON, example.DELTA, clip=1.0, steps=2 * example.STEPS)
    found = example.difference(example.Watched(scene, granted), start, EQUAL)
    loot = example.attack(scene, start, found, 1)
    assert loot.rows == 0
    assert loot.error > 0.8 * example.guess(scene, 1).error


def test_chosen_models_find_few_rows_in_secure_sums_with_the_default_limit(tmp_path):
    everybody, first, _ = attack_sums(100.0, tmp_path)
    assert everybody <= 5
    assert first <= everybody
