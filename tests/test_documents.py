"""The examples of the README and the tutorials run, and print what the pages say."""

import re

import pandas as pd
import pytest

from documents import (
    ROOT,
    commands,
    differs,
    examples,
    run_command,
    run_examples,
    write_tables,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("tutorial-*.md"))]
LIVE = ("demo", "federation", "watch")
"""Commands with tests of their own, which start other processes."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_examples_print_what_the_page_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = path.read_text(encoding="utf-8")
    for example, printed in zip(examples(page), run_examples(page), strict=True):
        assert not differs(example.printed, printed), printed


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_run(path, tmp_path):
    write_tables(tmp_path)
    for command in commands(path.read_text(encoding="utf-8")):
        if command[1] not in LIVE:
            run_command(command, tmp_path)


def test_a_wrong_number_is_noticed():
    assert differs("north 0.37\n", "north 0.44\n")
    assert differs("north 0.37\n", "south 0.37\n")
    assert not differs("north  0.370\n", "north 0.371\n")


def test_the_comparison_is_that_of_the_leaderboard():
    titles = {
        "pFedGraph": "pfedgraph",
        "Local-train (no federation)": "local",
        "Bi-level (fedkin's default)": "bilevel",
        "FedAvg with fine-tuning": "finetune",
        "FedAvg": "fedavg",
    }
    rows = pd.read_csv(ROOT / "reproduction" / "leaderboard" / "results" / "d-hospitals.csv")
    means = rows.groupby("method")[["accuracy", "worst"]].mean().round(3)
    said = {
        name: (float(mean), float(worst))
        for name, mean, worst in re.findall(
            r"^\| (.+) \| (0\.\d+) \| (0\.\d+) \|$", (ROOT / "README.md").read_text("utf-8"), re.M
        )
    }
    assert said == {title: tuple(means.loc[method]) for title, method in titles.items()}
