"""The examples of the README and the tutorials run, and print what the pages say."""

import re

import pytest

from documents import ROOT, differs, run_examples, write_tables
from fedkin.report.style import method_title
from reproduction.leaderboard.board import Board

PAGES = [
    ROOT / "README.md",
    *(
        path
        for path in sorted((ROOT / "docs").glob("tutorial-*.md"))
        if path.stem != "tutorial-federation"  # tests/flower/test_tutorial.py
    ),
]
NEEDED = {"tutorial-pytorch": ("torch", "onnx", "onnxscript", "onnxruntime")}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_examples_run_and_print_what_the_page_says(path, tmp_path, monkeypatch):
    for name in NEEDED.get(path.stem, ()):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    count = 0
    for example, printed in run_examples(path.read_text(encoding="utf-8")):
        count += 1
        assert example.printed is None or not differs(example.printed, printed), printed
    assert count >= 3


def test_a_wrong_number_is_noticed():
    assert differs("north 0.37\n", "north 0.44\n")
    assert differs("north 0.37\n", "south 0.37\n")
    assert not differs("north  0.370\n", "north 0.371\n")


def test_the_comparison_is_that_of_the_leaderboard():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ranks = Board().mean_ranks()
    titles = {method_title(str(method)): method for method in ranks.index}
    rows = re.findall(r"^\| (.+?) \| ([\d. |]+) \| \w+ \|$", readme, re.M)
    assert len(rows) == 5
    for title, numbers in rows:
        own = ranks.loc[titles[title]]
        assert numbers.split(" | ") == [f"{own[block]:.1f}" for block in ranks]
    assert [titles[title] for title, _ in rows[:4]] == ranks.index[:4].tolist()
