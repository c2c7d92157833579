"""Partitions in study files: from the keys to the nodes' data, and what contradicts itself is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import Dirichlet, Group, Groups, Pathological, split_nodes
from fedkin.errors import InputError
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig, StudyConfig
from fedkin.studies.partitioned import draw_nodes
from fedkin.studies.study_file import check_study, load_study

DIRICHLET = {"partition": "dirichlet", "alpha": 0.1, "nodes": 20}


def study(**content) -> StudyConfig:
    return check_study({"dataset": "digits", "method": "fedavg", **content}, "study.toml")


def test_the_keys_of_a_file_become_the_nodes(tmp_path: Path):
    (tmp_path / "study.toml").write_text(
        'dataset = "digits"\nmethod = "fedavg"\npartition = "dirichlet"\nalpha = 0.1\nnodes = 20\n'
        'target = "all"\nseed = 3\n'
    )
    (run,) = load_study(tmp_path / "study.toml").runs()
    assert run.target == "all"
    drawn = draw_nodes(run)
    direct = split_nodes(load_labeled("digits"), Dirichlet(0.1, 20), 3)
    assert len(drawn.nodes) == len(direct) == 20
    for one, other in zip(drawn.nodes, direct, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.train.inputs, other.train.inputs)
        np.testing.assert_array_equal(one.test.labels, other.test.labels)


def test_lists_are_grids_and_every_partition_takes_its_own_keys():
    made = study(
        partition=["dirichlet", "pathological"],
        alpha=[0.1, 0.5],
        classes_per_node=2,
        nodes=[10, 20],
        seed=[0, 1],
    )
    runs = made.runs()
    assert made.target == ["all"], "with a partition everyone is an owner"
    assert len(runs) == (2 * 2 + 2) * 2
    assert len({run.directory for run in runs}) == len({(run.cell, run.seed) for run in runs}) == 12
    assert runs[0].partition is not None
    assert runs[0].partition.partition == Dirichlet(0.1, 10)
    assert runs[-1].partition is not None
    assert runs[-1].partition.partition == Pathological(2, 20)
    assert runs[0].directory.startswith("digits-dirichlet-alpha-0.1-nodes-10-all-fedavg-0-")
    assert runs[0].cell == "digits dirichlet alpha=0.1 nodes=10 all"


def test_a_run_with_a_partition_survives_being_written():
    for content in (DIRICHLET, {"partition": "groups", "setting": 4, "minority_nodes": 3}):
        made = study(**content, validation_fraction=0.3)
        (run,) = made.runs()
        again = RunConfig.model_validate(json.loads(run.model_dump_json()))
        assert again == run
        assert again.directory == run.directory
        assert StudyConfig.from_record(json.loads(json.dumps(made.to_record()))).runs() == [run]


def test_defaults_are_part_of_the_run():
    (left,), (given,) = study(**DIRICHLET).runs(), study(**DIRICHLET, minimum=10).runs()
    assert left == given
    (other,) = study(**DIRICHLET, minimum=11).runs()
    assert other.directory != left.directory
    assert other.cell != left.cell


def test_runs_without_a_partition_keep_their_names():
    """The names that version 0.1 gave: the first is in `test_config.py` too."""
    one = RunConfig(dataset="digits", setting=1, settings={"preset": "paper"})
    assert one.directory == "digits-1-minority-bilevel-0-ed18c364f098"
    assert "partition" not in one.model_dump(exclude_none=True)


def test_settings_as_groups_of_owners():
    (run,) = study(partition="groups", setting=2, minority_nodes=2, majority_nodes=3).runs()
    assert run.node_count == 5
    assert (run.minority_nodes, run.majority_nodes) == (5, 10), "they are part of the partition"
    nodes = draw_nodes(run).nodes
    assert [node.group for node in nodes] == ["minority"] * 2 + ["majority"] * 3


def test_groups_of_a_file(tmp_path: Path):
    path = tmp_path / "three.toml"
    path.write_text("points_per_node = 50\n" + "[[groups]]\nnodes = 2\n" * 3)
    made = study(partition="groups", setting=str(path))
    (run,) = made.runs()
    assert run.partition is not None
    assert run.partition.partition == Groups((Group(2),) * 3, 50, name="three")
    assert StudyConfig.from_record(made.to_record()).runs() == [run]
    assert len(draw_nodes(run).nodes) == 6
    with pytest.raises(InputError, match=r"points_per_node is of no use here: .*three\.toml says"):
        study(partition="groups", setting=str(path), points_per_node=9)


BAD = {
    "unknown partition": (
        {"partition": "dirichelt"},
        "'dirichelt' is unknown; did you mean dirichlet",
    ),
    "unknown key": ({**DIRICHLET, "alfa": 1}, "unknown key alfa; did you mean alpha"),
    "missing key": ({"partition": "dirichlet", "nodes": 20}, "partition dirichlet needs alpha"),
    "no nodes": ({"partition": "pathological", "classes_per_node": 2}, "pathological needs nodes"),
    "no column": ({"partition": "natural"}, "natural needs column"),
    "held out of what a partition has split": (
        {**DIRICHLET, "held_out": 0.2},
        "held_out is of no use with the partition dirichlet",
    ),
    "nothing held out": (
        {"held_out": 0.0},
        "held_out",
    ),
    "key of another partition": (
        {**DIRICHLET, "classes_per_node": 2},
        "classes_per_node is of no use with the partition dirichlet, which takes alpha, minimum, nodes",
    ),
    "setting beside a partition": (
        {**DIRICHLET, "setting": 2},
        "setting is of no use with the part",
    ),
    "sizes of a setting": (
        {**DIRICHLET, "train_size": 50},
        "train_size is of no use with the part",
    ),
    "nodes of a setting": ({**DIRICHLET, "minority_nodes": 3}, "minority_nodes is of no use with"),
    "alpha alone": ({"alpha": 0.1}, 'alpha is of no use without partition = "dirichlet"'),
    "nodes alone": (
        {"nodes": 5},
        'nodes is of no use without partition = "dirichlet" or "pathological" or "natural"',
    ),
    "fraction alone": ({"test_fraction": 0.2}, "test_fraction is of no use without partition"),
    "all without a partition": ({"target": "all"}, 'target = "all" needs a partition'),
    "one owner with a partition": (
        {**DIRICHLET, "target": "minority"},
        'with a partition every node is an owner: write target = "all"',
    ),
    "unknown target": ({**DIRICHLET, "target": "al"}, "'al' is unknown; did you mean all"),
    "number": ({**DIRICHLET, "alpha": -1}, "alpha must lie between"),
    "text": ({**DIRICHLET, "nodes": "many"}, "nodes: must be a valid integer"),
    "fraction": ({**DIRICHLET, "test_fraction": 1.5}, "test_fraction: must be less than 1"),
    "twice": ({**DIRICHLET, "nodes": [5, 5]}, "nodes lists the same value twice"),
    "empty": ({**DIRICHLET, "nodes": []}, "nodes is an empty list"),
    "cap below 1/K": (
        {**DIRICHLET, "method": "bilevel", "settings": {"cap": 0.01}},
        "between 1/20",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_refused_with_the_key_and_what_to_do(name):
    content, message = BAD[name]
    with pytest.raises(InputError, match=f"^study.toml: .*{message}"):
        study(**content)


def test_a_run_of_one_owner_has_no_partition_and_the_reverse(tmp_path: Path):
    (run,) = study(**DIRICHLET).runs()
    with pytest.raises(InputError, match="asks those of all nodes"):
        do_run(run, tmp_path)
    with pytest.raises(InputError, match="has no partition"):
        draw_nodes(study(setting=1).runs()[0])
