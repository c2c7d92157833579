"""Rows that a node holds out for its own question: too few would be revealed by what is said about them."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.errors import FedkinError
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.messenger import Messenger
from flower.fake_grid import FakeGrid


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_node_does_not_describe_a_part_of_one_row(tmp_path, caplog, part):
    draw = np.random.default_rng(0)
    table = tmp_path / "bern.csv"
    rows = {"age": draw.integers(20, 90, 60), "outcome": draw.choice(["ill", "well"], 60)}
    pd.DataFrame(rows).to_csv(table, index=False)
    settings = {"name": "bern", "data": str(table), "label": "outcome", "validation-fraction": 0.2}
    settings["reproducible"] = True

    def describe(**more):
        messenger = Messenger(FakeGrid([settings | more]), interval=0.01)
        return describe_nodes(messenger, 1, 5)

    assert describe()[0].held_out["validation"]
    with pytest.raises(FedkinError, match="see its owner's log"):
        describe(**{f"{part}-fraction": 0.02})
    assert f"1 {part} rows, fewer than the 5" in caplog.text


def test_whether_a_column_identifies_rows_is_asked_of_the_whole_table(tmp_path):
    """Eight wards in eight rows held out are no names; a name per row is one in every part."""
    draw = np.random.default_rng(0)
    rows = {
        "ward": [*"ABCDEFGHIJKLMNOPQRST"] * 2,
        "age": draw.integers(20, 90, 40),
        "outcome": draw.choice(["ill", "well"], 40),
    }
    table = tmp_path / "bern.csv"
    shares = {"validation-fraction": 0.2, "test-fraction": 0.2}
    node = FakeGrid(
        [{"name": "bern", "data": str(table), "label": "outcome", "reproducible": True, **shares}]
    )

    def describe(**columns):
        pd.DataFrame(rows | columns).to_csv(table, index=False)
        return describe_nodes(Messenger(node, interval=0.01), 1, 5)[0]

    held_out = describe().held_out["test"]
    assert len(json.loads(held_out)["columns"]["ward"]["categories"]) > 0.7 * 8
    with pytest.raises(FedkinError, match="see its owner's log"):
        describe(name=[f"name {row}" for row in range(40)])
