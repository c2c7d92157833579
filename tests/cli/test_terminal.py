"""What is printed cannot steer a terminal, whatever names, cells and messages there are."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.table import Table
from rich.text import Text

import fedkin
from fedkin.cli import output
from fedkin.data.sites import split_frame
from fedkin.data.table_request import parse_nodes
from fedkin.data.tables import read_table
from fedkin.errors import InputError
from fedkin.messages import STEERING
from fedkin.studies.study_file import check_study

EVIL = ("n1\x1b[2J", "a\rb", "c\x9b31m", "d\u202etxt", "e\x7f", "f\nname = 1")


@pytest.fixture(params=EVIL)
def evil(request):
    return request.param


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, in which Rich itself may write colors."""
    written = io.StringIO()
    console = output.SafeConsole(file=written, force_terminal=True, color_system=None, width=300)
    monkeypatch.setattr(output, "results", console)
    monkeypatch.setattr(output, "notes", console)
    return written


def test_lines_tables_and_warnings_are_escaped(terminal, evil):
    output.print_result(f"node {evil}")
    output.print_note(f"node {evil}")
    output.print_warning(f"node {evil}")
    table = Table()
    table.add_column(Text(evil))
    table.add_row(Text(evil))
    output.results.print(table)
    output.results.print(output.weight_bars({evil: 1.0}))
    printed = terminal.getvalue().replace("\n", "")
    assert not STEERING.search(printed)
    assert evil[0] in printed


def test_json_is_escaped_and_says_the_same(evil, capsys):
    output.print_json({"name": evil}, schema="test/1")
    printed = capsys.readouterr().out
    assert not STEERING.search(printed.replace("\n", ""))
    assert json.loads(printed)["name"] == evil


def refused(action, *arguments, **named):
    with pytest.raises(InputError, match="has control characters") as caught:
        action(*arguments, **named)
    assert not STEERING.search(str(caught.value))


def test_names_of_nodes_are_refused(evil):
    points = (np.zeros((20, 1)), np.zeros(20))
    refused(fedkin.fit, {evil: points, "other": points}, points, model="ridge")
    refused(parse_nodes, [f"{evil}=a.csv"])
    refused(parse_nodes, [f"{evil}.csv"])


def test_names_of_sites_and_columns_are_refused(evil, tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1], "clinic": ["a", evil]})
    refused(split_frame, frame, site="clinic", label="y")
    path = tmp_path / "table.csv"
    pd.DataFrame({evil: [1, 2], "b": [1, 2]}).to_csv(path, index=False, quoting=csv.QUOTE_ALL)
    refused(read_table, path, "node 'a'")


def test_names_in_studies_are_refused(evil):
    refused(check_study, {"dataset": evil, "method": "fedavg"}, "study.toml")
