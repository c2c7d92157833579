"""Comparisons with the paper on numbers made by hand: every expected value is worked out here."""

import dataclasses
import math

import pandas as pd
import pytest

from fedkin.report.reading import Cell, read_record
from reproduction.page import comparison, solvers
from reproduction.page.comparison import MAIN_CELLS, Count, pooled_deviation
from reproduction.page.paper import PaperFigures
from stores import invent_study, study

METHODS = ("bilevel", "fedavg", "ditto", "pfedme", "local")


def table(cells=MAIN_CELLS, **accuracies) -> pd.DataFrame:
    """A table in which every cell looks the same: Bi-level first, Local-train before FedAvg."""
    values = {
        "bilevel": 0.8,
        "fedavg": 0.5,
        "ditto": 0.7,
        "pfedme": 0.71,
        "local": 0.6,
    } | accuracies
    rows = [
        {**cell._asdict(), "method": method, "accuracy": values[method], "difference": 0.01}
        for cell in cells
        for method in METHODS
    ]
    return pd.DataFrame(rows)


def at(table: pd.DataFrame, cell: Cell, method: str) -> pd.Series:
    return (
        (table.dataset == cell.dataset)
        & (table.setting == cell.setting)
        & (table.target == cell.target)
        & (table.method == method)
    )


def test_deviations_are_pooled_by_degrees_of_freedom():
    # (2 x 0.0009 + 4 x 0.0001) / (2 + 4)
    assert pooled_deviation(0.03, 3, 0.01) == pytest.approx(math.sqrt(0.0022 / 6))
    # Five seeds against the paper's five: the plain mean of the variances.
    assert pooled_deviation(0.03, 5, 0.01) == pytest.approx(math.sqrt((0.0009 + 0.0001) / 2))
    assert pooled_deviation(math.nan, 1, 0.01) == 0.01


def test_differences_are_given_in_these_deviations(tmp_path):
    invent_study(tmp_path / "out", study(setting=[2], seed=[0, 1, 2]))
    record = dataclasses.replace(read_record(tmp_path / "out"), paper=PaperFigures())
    compared = comparison.compare(record).set_index("method")
    scores = [run.outcome["test_accuracy"] for run in record.runs if run.method == "bilevel"]
    mean = sum(scores) / 3
    variance = sum((score - mean) ** 2 for score in scores) / 2
    pooled = math.sqrt((2 * variance + 4 * 0.0283**2) / 6)  # 0.8580 ± 0.0283: the paper's cell
    row = compared.loc["bilevel"]
    assert row.deviations == pytest.approx((mean - 0.8580) / pooled)
    # The same difference over its own standard error: Student's t for two samples.
    error = pooled * math.sqrt(1 / 3 + 1 / 5)
    assert row.errors == pytest.approx((mean - 0.8580) / error)
    assert list(compared.index[compared.paper_best]) == ["bilevel"]


def test_an_entry_is_far_beyond_three_deviations_either_way():
    rows = pd.DataFrame({"method": list("abcd"), "deviations": [3.1, -3.1, 2.9, math.nan]})
    assert [row.method for row in comparison.far_entries(rows)] == ["a", "b"]


def test_cells_that_bilevel_wins_are_counted():
    full = table()
    assert comparison.bilevel_wins(full).verdict == "yes"
    for lost, verdict in ((2, "yes"), (3, "no")):
        beaten = full.copy()
        for cell in MAIN_CELLS[:lost]:
            beaten.loc[at(beaten, cell, "pfedme"), "accuracy"] = 0.85
        count = comparison.bilevel_wins(beaten)
        assert (len(count.shown), count.judged, count.verdict) == (24 - lost, 24, verdict)
        assert "pFedMe is ahead by 0.050" in count.others[0]


def test_a_cell_without_all_methods_is_not_judged():
    full = table()
    partial = full[~at(full, MAIN_CELLS[0], "ditto")]
    count = comparison.bilevel_wins(partial)
    assert (count.judged, count.expected, count.verdict) == (23, 24, "yes")
    few = comparison.bilevel_wins(table(MAIN_CELLS[:21]))
    assert (len(few.shown), few.verdict) == (21, "open")


def test_cells_close_to_the_papers_mean_are_counted():
    full = table()
    for number, cell in enumerate(MAIN_CELLS[:6]):
        full.loc[at(full, cell, "bilevel"), "difference"] = 0.021 * (-1) ** number
    count = comparison.bilevel_close_to_paper(full)
    assert (len(count.shown), count.verdict) == (18, "no")
    assert "−0.021" in count.others[1]
    full.loc[at(full, MAIN_CELLS[0], "bilevel"), "difference"] = -0.02
    assert comparison.bilevel_close_to_paper(full).verdict == "yes"
    full.loc[at(full, MAIN_CELLS[1], "fedavg"), "difference"] = 0.5  # other methods do not count
    assert comparison.bilevel_close_to_paper(full).verdict == "yes"


def test_the_order_of_fedavg_and_local_train_counts_in_six_cells():
    full = table()
    count = comparison.fedavg_below_local(full)
    assert (len(count.shown), count.expected, count.verdict) == (6, 6, "yes")
    # Setting 1, and the majority, have no part in it.
    for cell in MAIN_CELLS:
        if cell.setting == "1" or cell.target == "majority":
            full.loc[at(full, cell, "fedavg"), "accuracy"] = 0.9
    assert comparison.fedavg_below_local(full).verdict == "yes"
    full.loc[at(full, Cell("mnist", "3", "minority"), "fedavg"), "accuracy"] = 0.6
    assert comparison.fedavg_below_local(full).verdict == "no"


def test_weights_are_judged_by_their_mean_over_seeds_at_the_end():
    cells = [cell for cell in MAIN_CELLS if cell.setting != "1"]
    rows = [{**cell._asdict(), "last": share} for cell in cells for share in (0.94, 0.97)]
    count = comparison.similar_nodes_have_the_weight(pd.DataFrame(rows))
    assert (len(count.shown), count.expected, count.verdict) == (18, 18, "yes")
    rows[0]["last"] = 0.92
    count = comparison.similar_nodes_have_the_weight(pd.DataFrame(rows))
    assert (len(count.shown), count.verdict) == (17, "no")
    assert "94.5%" in count.others[0]


def solver_row(cell, ratio=0.3, difference=0.0, pooled=0.01, common=0.3) -> dict:
    return {
        **cell._asdict(),
        "synchronizations_ratio": ratio,
        "difference": difference,
        "pooled": pooled,
        "common_ratio": common,
    }


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, True),
        ({"ratio": 1 / 3}, True),
        ({"ratio": 0.34}, False),
        ({"difference": -0.0099}, True),
        ({"difference": -0.0101}, False),
        ({"difference": 0.05}, True),  # a gain is no loss
    ],
)
def test_cg_must_be_three_times_as_fast_at_no_loss(change, shown):
    rows = [solver_row(cell) for cell in solvers.CELLS[1:]] + [
        solver_row(solvers.CELLS[0], **change)
    ]
    count = solvers.cg_is_faster(pd.DataFrame(rows))
    assert (len(count.shown) == 8) == shown
    assert count.verdict == ("yes" if shown else "no")


def test_one_seed_leaves_the_solvers_open_and_an_accuracy_never_reached_counts_against_cg():
    rows = [solver_row(cell, pooled=math.nan) for cell in solvers.CELLS]
    assert solvers.cg_is_faster(pd.DataFrame(rows)).verdict == "open"
    rows = [solver_row(cell, common=math.nan) for cell in solvers.CELLS]
    count = solvers.cg_is_faster(pd.DataFrame(rows), ratio="common_ratio")
    assert (count.shown, count.judged) == ([], 8)
    assert "never reached" in count.others[0]


def test_verdicts_wait_for_what_can_still_decide():
    assert Count("", 3, 4, shown=["a", "b", "c"]).verdict == "yes"
    assert Count("", 3, 4, shown=["a"], others=["b"]).verdict == "open"
    assert Count("", 3, 4, shown=["a"], others=["b", "c"]).verdict == "no"
