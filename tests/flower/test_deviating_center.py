"""A center that deviates from the protocol of secure sums, with real nodes: what is left to it is numbers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from attacks.summed_center import summary_of
from attacks.victim import LABEL, NUMBERS, agreed, make_table
from fedkin.flower.wire import Refusal
from flower.deviating_center import NAMES
from flower.processes import Processes, wait_until

pytestmark = pytest.mark.flower

PATIENCE = 1200


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the center has found, and the nodes' tables."""
    directory = tmp_path_factory.mktemp("tables")
    tables = {name: make_table(directory / f"{name}.csv", seed) for seed, name in enumerate(NAMES)}
    processes, out = Processes(directory / "federation"), directory / "found.json"
    try:
        processes.start_superlink()
        for name in NAMES:
            table = {"data": directory / f"{name}.csv", "label": LABEL}
            processes.start_node(name, **table, state=directory / "state" / name)
        with processes.control() as link:
            app = Path(__file__).parent / "deviating_app"
            link.start_run(app, {"tables": str(directory), "out": str(out)})

        def ended():
            return out.exists() or "Traceback" in processes.log("superlink")

        wait_until(ended, PATIENCE, "the end of the attacks")
        assert out.exists(), processes.log("superlink")[-3000:]
    finally:
        processes.stop()
    return json.loads(out.read_text()), tables


def test_the_honest_sum_is_the_mean_of_the_nodes_gradients(report):
    found, tables = report
    columns = agreed(summary_of(pd.concat(tables.values())))["columns"]
    means = np.array([own["mean"] for own in columns])
    deviations = np.array([own["standard_deviation"] for own in columns])
    gradients = []
    for table in tables.values():
        rows = (table[list(NUMBERS)].to_numpy() - means) / deviations
        inputs = np.column_stack([np.ones(len(rows)), rows])
        labels = (table[LABEL] == "well").to_numpy()
        residuals = 0.5 - np.stack([~labels, labels], axis=1)
        gradients.append((inputs.T @ residuals / len(rows)).ravel())
    np.testing.assert_allclose(found["sum"], np.mean(gradients, axis=0), atol=1e-5)


def test_what_deviates_is_refused(report):
    found, _ = report
    expected = {
        "the same exchange again": Refusal.ASKED_BEFORE,
        "the same exchange with other peers": Refusal.ASKED_BEFORE,
        "a sum of one node": Refusal.LIMIT,
        "a sum of two nodes": Refusal.LIMIT,
        "a sum that it is not in": Refusal.INVALID,
        "a sum with a node that nobody knows": Refusal.INVALID,
        "a share above the limit": Refusal.LIMIT,
        "a share that is more than all": Refusal.INVALID,
        "words that nobody waits for": Refusal.LIMIT,
        "the form sum": Refusal.FORBIDDEN,
        "the form revealed": Refusal.FORBIDDEN,
        "the same question for fewer nodes": 0,  # as after a failure
        "and then for all again": Refusal.ASKED_BEFORE,
        "and then for others": Refusal.ASKED_BEFORE,
    }
    assert {name: code for name, (code, _) in found["deviations"].items()} == expected


def test_what_does_not_go_together_is_noise(report):
    found, _ = report
    norms = found["noise"]
    complete = norms.pop("a complete sum")
    assert 0.01 < complete < 10
    assert min(norms.values()) > 1e3 * complete, norms


def test_the_attacks_of_step_seven_get_nothing_from_vectors(report):
    found, _ = report
    for name, loot in found["attacks"].items():
        known = {what: loot[what] for what in ("rows", "labels", "values", "extremes")}
        assert not any(known.values()), (name, known)


def test_what_is_left_are_numbers_and_they_are_enough_for_single_rows(report):
    """Slopes are components of a gradient; docs/security.md says so."""
    found, _ = report
    assert 0 < found["numbers"]["rows"] <= 6
