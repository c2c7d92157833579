"""`fedkin data show --partition` as it is typed, and the picture it draws."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encoded_images import encode, parquet_table
from PIL import Image

from fedkin.cli.app import main
from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import (
    Dirichlet,
    Pathological,
    groups_of_scenario,
    split_nodes,
)
from fedkin.data.scenarios import paper_scenario
from fedkin.report.partition_figure import class_share_rows, draw_partition

SHOW = ["data", "show", "digits", "--partition"]
DIRICHLET = [*SHOW, "dirichlet", "--alpha", "0.1", "--nodes", "20"]


@pytest.fixture
def fedkin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedkin", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        output = capsys.readouterr()
        return int(end.value.code or 0), output.out, output.err

    return run


def test_json_and_files_have_the_partition(fedkin, tmp_path: Path) -> None:
    status, output, errors = fedkin(*DIRICHLET, "--seed", "4", "--out", "here", "--json")
    assert (status, errors) == (0, "")
    answer = json.loads(output)
    nodes = split_nodes(load_labeled("digits"), Dirichlet(0.1, 20), 4)
    assert answer["schema"] == "fedkin.data.partition/1"
    assert answer["fields"] == {"alpha": 0.1, "nodes": 20, "minimum": 10}
    assert [each["name"] for each in answer["nodes"]] == [node.name for node in nodes]
    assert [each["class_counts"] for each in answer["nodes"]] == [
        node.class_counts(10).tolist() for node in nodes
    ]
    assert sum(sum(each["class_counts"]) for each in answer["nodes"]) == answer["rows"] == 1797
    written = json.loads((tmp_path / "here" / "partition.json").read_text())
    assert written["rows_of_nodes"]["node-3"]["test"] == nodes[2].rows.test.tolist()
    with Image.open(tmp_path / "here" / "partition.png") as image:
        assert min(image.size) > 1000
    assert (tmp_path / "here" / "partition.svg").stat().st_size > 1000


def test_words_say_who_holds_what(fedkin) -> None:
    status, output, errors = fedkin(*SHOW, "pathological", "--classes-per-node=1", "--nodes=10")
    assert status == 0
    assert "digits, pathological classes_per_node=1 nodes=10, seed 0" in output
    assert "100%" in output
    assert "10 nodes have points of one class only" in errors
    assert "partition.png" in errors


def test_changes_of_groups_are_said(fedkin, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        "points_per_node = 40\n[[groups]]\nnodes = 2\n[[groups]]\nnodes = 1\nrotation = 90\n"
        "permutation = { 3 = 4, 4 = 3 }\n"
    )
    status, output, _ = fedkin(*SHOW, "groups", "--setting", "own.toml")
    assert status == 0
    assert "In group2: labels 3→4, 4→3; images turned 90° clockwise" in output


def test_images_of_writers(fedkin, tmp_path: Path, pictures: np.ndarray) -> None:
    directory = tmp_path / "letters"
    directory.mkdir()
    blobs = [encode(each) for each in pictures]
    for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        table = parquet_table(blobs[rows], [i % 2 for i in range(len(blobs[rows]))], ["a", "b"])
        writers = pa.array(["ada", "bo"] * (len(table) // 2))
        pq.write_table(table.append_column("writer", writers), directory / f"{part}.parquet")
    show = ["data", "show", "./letters", "--partition", "natural", "--column"]
    status, output, _ = fedkin(*show, "writer", "--json")
    assert status == 0
    assert {each["name"]: sum(each["class_counts"]) for each in json.loads(output)["nodes"]} == {
        "ada": 6,
        "bo": 6,
    }
    status, _, errors = fedkin(*show, "author")
    assert status == 2
    assert "has no column 'author'; its columns are image, label, writer" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SHOW, "dirichlt"], "did you mean dirichlet"),
        ([*SHOW, "dirichlet", "--nodes", "20"], "the partition dirichlet needs --alpha"),
        ([*DIRICHLET, "--classes-per-node", "2"], "--classes-per-node is of no use with the part"),
        ([*DIRICHLET, "--setting", "2"], "--setting is of no use with the partition dirichlet"),
        ([*DIRICHLET, "--target", "minority"], "--target is of no use with --partition"),
        ([*DIRICHLET, "--minimum", "90"], "lower nodes, or minimum to 89 or less"),
        ([*DIRICHLET, "--test-fraction", "1"], "test_fraction must lie between 0 and 1"),
        (
            [*SHOW, "pathological", "--nodes=2", "--classes-per-node=2"],
            "cannot have all 10 classes",
        ),
        ([*SHOW, "natural", "--column", "writer"], "no column 'writer'"),
        ([*SHOW, "groups"], "the partition groups needs --setting: 1, 2, 3 or 4"),
        (
            ["data", "show", "digits", "--setting", "1", "--nodes", "3"],
            "no use without --partition",
        ),
        (["data", "show", "digitz", *DIRICHLET[3:]], "did you mean digits"),
    ],
)
def test_mistakes(fedkin, no_data: None, arguments: list[str], message: str) -> None:
    status, output, errors = fedkin(*arguments)
    assert (status, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_the_heat_map_shows_the_shares_and_leaves_absent_classes_blank() -> None:
    nodes = split_nodes(load_labeled("digits"), Pathological(2, 20), 0)
    axes, sizes, *_ = draw_partition(nodes, [str(i) for i in range(10)], "a title").axes
    shares = class_share_rows(nodes, 10)
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown.filled(0), 100 * shares)
    np.testing.assert_array_equal(shown.mask, shares == 0)
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1] == "node-20"
    totals = sum(np.array([bar.get_width() for bar in part]) for part in sizes.containers)
    np.testing.assert_array_equal(totals, [node.class_counts(10).sum() for node in nodes])


def test_groups_that_differ_show_their_images() -> None:
    groups = groups_of_scenario(paper_scenario("digits", 4), 1, 1)
    nodes = split_nodes(load_labeled("digits"), groups, 0)
    figure = draw_partition(nodes, [str(i) for i in range(10)], "a title")
    images = [axes for axes in figure.subfigs[1].axes if axes.images]
    assert len(images) == 2 * 2 * 10
    first = nodes[0].train.inputs[np.flatnonzero(nodes[0].train.labels == 0)[0], :, :, 0]
    np.testing.assert_array_equal(images[0].images[0].get_array(), first)
