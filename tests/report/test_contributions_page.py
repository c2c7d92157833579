"""What reports show of contributions, from numbers that need no training."""

import re

import numpy as np
import pandas as pd
import pytest

from fedkin.federation.base import Cost
from fedkin.report.contributions import contribution_chart, second_opinion
from fedkin.valuation.result import Contributions, with_error

COLUMNS = (
    "rows",
    "weight",
    "shapley",
    "sampling_error",
    "row_error",
    "leave_one_out",
    "leave_one_out_error",
)


def found(**changes):
    table = pd.DataFrame(
        [
            (80, 0.1, -0.2, 0.03, 0.04, 0.01, 0.02),
            (90, 0.9, 0.3, 0.03, 0.04, 0.001, 0.01),
            (40, np.nan, 0.3, 0.0, 0.05, 0.2, 0.05),
        ],
        columns=list(COLUMNS),
        index=pd.Index(["west", "<b>east</b>", "south"], name="node"),
    )
    fields = {
        "table": table,
        "score": "loss",
        "regression": False,
        "weights": "size",
        "everyone": -0.3,
        "nobody": -0.7,
        "exact": False,
        "orders": 20,
        "ended_early": 3,
        "groups": 99,
        "converged": True,
        "cost": Cost(synchronizations=30),
    }
    return Contributions(**fields | changes)


def test_errors_over_orders_and_rows_add_up():
    assert [each.error for each in found().nodes] == pytest.approx([0.05, 0.05, 0.05])


def test_nodes_that_others_can_stand_in_for_are_named():
    shown = found()
    assert shown.replaceable == ("<b>east</b>",)  # south is missed, west does harm
    assert shown.caution is not None
    assert "leaving it out costs little: other nodes can stand in for it." in shown.caution
    assert found(table=shown.table.loc[["south"]]).caution is None
    unsure = shown.table.loc[["<b>east</b>"]].assign(leave_one_out=0.15, leave_one_out_error=0.1)
    assert found(table=unsure).caution is None  # not told from zero, but not little either


def test_scores_are_written_as_users_know_them():
    assert "a log loss of 0.3; the best constant answer has 0.7" in found().sentence
    assert "difference of +0.4" in found().sentence
    accuracy = found(score="accuracy", everyone=0.9, nobody=0.5).sentence
    assert "an accuracy of 0.9; the best constant answer has 0.5" in accuracy
    assert "99 models, trained to convergence" in found().method
    assert with_error(1234.5, 20.1) == "+1234 ± 20"


def test_nodes_are_shown_by_their_value_with_marks_where_the_numbers_are():
    shown = second_opinion(found())
    assert shown is not None
    assert [row["node"] for row in shown.rows] == ["<b>east</b>", "south", "west"]
    assert shown.rows[2]["contribution"] == "−0.200 ± 0.050"
    chart = str(contribution_chart(found()))
    assert "<b>east</b>" not in chart
    assert chart.count('class="ring"') == 3
    circles = re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="6" class="credit (\w+)"', chart)
    places = [float(x) for x, _ in circles]
    assert [side for _, side in circles] == ["gains", "gains", "loses"]
    assert places[0] == places[1] > places[2]
    (zero,) = map(float, re.findall(r'<line x1="([\d.]+)"[^>]* class="axis"', chart))
    assert places[2] < zero < places[0]
    # Zero divides the way from −0.2 to 0.3 as 2 to 3.
    assert (zero - places[2]) / (places[0] - places[2]) == pytest.approx(0.4, abs=1e-3)


def test_without_the_question_there_is_nothing_to_show():
    assert second_opinion(None) is None
