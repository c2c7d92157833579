"""The paper's figures next to ours, and where they do not belong."""

import re
from dataclasses import replace

import pytest

from fedkin.report import html, tables
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


def test_the_page_shows_the_papers_figure_in_every_entry(tmp_path):
    invent_study(tmp_path / "out", study(setting=[2, 4], seed=[0, 1, 2]))
    page = html.render(read(tmp_path / "out"))
    shown = re.findall(
        r"([0-9.]+) ± [0-9.]+(?:</strong>)?<small>paper ([0-9.]+) <span>\(([^)]*)\)", page
    )
    cells = [("mnist", setting, "minority") for setting in ("2", "4")]
    values = [f"{paper_values()[cell, method][0]:.3f}" for cell in cells for method in METHODS]
    assert [paper for _, paper, _ in shown] == values
    for mean, paper, difference in shown:
        signed = float(difference.replace("−", "-"))
        assert signed == pytest.approx(float(mean) - float(paper), abs=1.51e-3)  # all three rounded


def test_what_differs_from_the_paper_is_noted(tmp_path):
    def notes(**changes):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        invent_study(path, study(seed=[0], method=["bilevel", "fedavg"], **changes))
        return " ".join(PaperFigures().notes(read(path)))

    assert notes().startswith("Paper: the figure of that cell")
    assert "Some runs" not in notes()
    assert "original images of CIFAR-10" in notes(dataset="cifar10-jpeg")
    assert "CIFAR" not in notes()
    other = notes(model="logistic")
    assert "Some runs use another model" in other
    assert "Paper: " not in other
