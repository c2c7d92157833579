"""The paper's figures next to ours, and where they do not belong."""

from dataclasses import replace

import pytest

from fedkin.report import tables
from fedkin.report.reading import read_record
from reproduction.page.paper import METHODS, PaperFigures, paper_values
from stores import invent_study, study


def read(path):
    return replace(read_record(path), paper=PaperFigures())


def test_the_papers_values_stand_next_to_ours(tmp_path):
    """Four of the paper's 160 figures, typed off its table."""
    values = paper_values()
    assert len(values) == 160
    assert {method for _, method in values} == set(METHODS)
    invent_study(tmp_path / "out", study(dataset=["mnist", "cifar10"], setting=[2, 4], seed=[0, 1]))
    record = read(tmp_path / "out")
    rows = {
        (row.dataset, row.setting, row.method): row for row in tables.summary(record).itertuples()
    }
    for key, paper in {
        ("mnist", "2", "Bi-level"): 0.8580,
        ("mnist", "4", "Local-train"): 0.7645,
        ("cifar10", "2", "FedAvg"): 0.2870,
        ("cifar10", "4", "pFedMe"): 0.4548,
    }.items():
        assert rows[key].paper == paper
        assert rows[key].difference == pytest.approx(rows[key].accuracy - paper)
    assert any("JPEG" in note for note in tables.notes(record))


def test_other_experiments_are_not_compared_with_the_paper(tmp_path):
    for number, changes in enumerate(
        (
            {"dataset": "tiny-imagenet32"},
            {"model": "logistic"},
            {"majority_nodes": 4},
            {"train_size": 100},
        )
    ):
        path = tmp_path / str(number)
        invent_study(path, study(seed=[0], method=["bilevel", "fedavg"], **changes))
        assert tables.summary(read(path)).paper.isna().all(), changes
    notes = tables.notes(read(tmp_path / "0"))
    assert any("is not the paper's DS-ImageNet" in note for note in notes)
