"""Rows that a node holds out for its own question: too few would be revealed by what is said about them."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.errors import FedkinError
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.messenger import Messenger
from flower.fake_grid import FakeGrid


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_node_does_not_describe_a_part_of_one_row(tmp_path, part):
    draw = np.random.default_rng(0)
    table = tmp_path / "bern.csv"
    rows = {"age": draw.integers(20, 90, 60), "outcome": draw.choice(["ill", "well"], 60)}
    pd.DataFrame(rows).to_csv(table, index=False)
    settings = {"name": "bern", "data": str(table), "label": "outcome", "validation-fraction": 0.2}

    def describe(**more):
        messenger = Messenger(FakeGrid([settings | more]), interval=0.01)
        return describe_nodes(messenger, 1, 5)

    assert describe()[0].held_out["validation"]
    with pytest.raises(FedkinError, match=f"fewer {part} rows than the 5"):
        describe(**{f"{part}-fraction": 0.02})
