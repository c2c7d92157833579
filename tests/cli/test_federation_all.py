"""`fedkin federation init --all`, `run` and `node --validation-fraction`: what they write and refuse."""

import tomllib

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from cli.test_federation_commands import NODE, become, credentials, fedkin, refused, tables, trial
from fedkin.flower import trial as trial_module
from fedkin.flower.jobs.everyone import EveryoneJob
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.layout import Layout
from fedkin.flower.node_settings import node_settings

__all__ = ["become", "credentials", "fedkin", "tables", "trial"]


def test_a_server_of_owners_holds_no_data(fedkin, tables, tmp_path):
    options = ["--all", "--test-fraction", 0.25, "--seed", 3]
    assert fedkin("init", "f", *tables, *options).status == 0
    layout = Layout(tmp_path / "f")
    federation = layout.read()
    assert federation.center == {}
    assert not layout.center.exists()
    for node in federation.node:
        settings = node_settings(trial_module._node_configuration(layout, federation, node))
        assert settings.data == str(tmp_path / f"{node.name}.csv")  # where it was
        assert (settings.validation_fraction, settings.test_fraction) == (0.2, 0.25)
        assert settings.seed == 3
        assert "validation_gradient" in settings.allowed
    refused(fedkin("run", "f", "--out", "r", "--steps", 2), "is down")
    (path,) = (tmp_path / "f" / "jobs").glob("options-*.toml")
    job = load_job(path)
    assert isinstance(job, EveryoneJob)
    assert (job.keys.seed, job.keys.steps, job.federation.nodes) == (3, 2, 2)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--validation", "own.csv"], ["--validation", "every node is one"]),
        (["--test", "own.csv"], ["--test is for one owner"]),
        (["--target-node", "a"], ["--target-node", "every node is one"]),
        (["--setting", "2"], ["--setting", "images"]),
        (["--validation-fraction", "0"], ["between 0 and 1"]),
        (["--validation-fraction", "0.8", "--test-fraction", "0.3"], ["leave rows for"]),
        (["--validation-fraction", "0.1"], ["'a'", "4 of its rows", "--validation-fraction"]),
        (["--node", "none.csv"], ["there is no file none.csv"]),
        (["--node", "x y=c.csv"], ["'x y'", "NAME=FILE"]),
    ],
)
def test_init_all_refuses(fedkin, tables, tmp_path, more, parts):
    refused(fedkin("init", "f", *tables, "--all", *more), *parts)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--nodes", "4"], ["--all is for nodes with tables", "--node FILE"]),
        (["--nodes", "0"], ["--nodes 0 makes none", "--validation-fraction"]),
        (["--node", "a.csv", "--label", "outcome"], ["one node alone"]),
        (["--node", "a.csv", "--node", "b.csv"], ["--label"]),
    ],
)
def test_init_all_needs_tables(fedkin, tables, tmp_path, arguments, parts):
    refused(fedkin("init", "f", "--all", *arguments), *parts)
    assert not (tmp_path / "f").exists()


def test_a_study_of_one_owner_does_not_fit_a_server_of_owners(fedkin, tables, tmp_path):
    assert fedkin("init", "f", *tables, "--all").status == 0
    (tmp_path / "job.toml").write_text('validation = "own.csv"')
    refused(fedkin("run", "f", "job.toml", "--out", "r"), "a single owner", "leave one of them out")


def test_a_node_elsewhere_is_an_owner(fedkin, tables, credentials, become, tmp_path):
    more = ["--validation-fraction", 0.25, "--test-fraction", 0.2, "--seed", 4, "--state", "state"]
    answer = fedkin(*NODE, *credentials, *more)
    assert answer.status == 0, answer.err
    assert "22 rows" in answer.err
    assert "10 more held out for validation; 8 more held out for test" in answer.err
    told = tomllib.loads((tmp_path / "state" / "node.toml").read_text())
    assert (told["validation-fraction"], told["test-fraction"], told["seed"]) == (0.25, 0.2, 4)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--seed", 4], ["--seed", "--validation-fraction"]),
        (["--test-fraction", 0.2], ["test-fraction goes with validation-fraction"]),
        (["--validation-fraction", 1.5], ["validation-fraction", "less than 1"]),
        (["--validation-fraction", 0.6, "--test-fraction", 0.5], ["leave no rows to train on"]),
        (["--validation-fraction", 0.05], ["holds out 2 rows", "--minimum-batch is 5"]),
    ],
)
def test_node_refuses(fedkin, tables, credentials, become, more, parts):
    refused(fedkin(*NODE, *credentials, *more), *parts)
    assert become == []
