"""`fedkin federation init --advise`: the owner's rows at the center, and no node of theirs."""

import tomllib

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.errors import InputError
from fedkin.flower.jobs.advice import AdviceJob
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.jobs.writing import write_job
from fedkin.flower.layout import Layout

INIT = ["federation", "init", "trial"]
LABEL = ["--label", "outcome"]
FILES = ["--node", "a.csv", "--node", "b.csv", "--node", "c.csv"]


@pytest.fixture
def tables(tmp_path):
    rows = {"a": 40, "b": 40, "c": 40, "own": 40, "few": 8}
    for seed, (name, count) in enumerate(rows.items()):
        draw = np.random.default_rng(seed)
        outcome = np.where(draw.uniform(size=count) < 0.5, "yes", "no")
        pd.DataFrame({"age": draw.normal(size=count), "outcome": outcome}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )


def job_of(tmp_path, **options):
    layout = Layout(tmp_path / "trial")
    return load_job(write_job(layout, layout.read(), None, options, plain_sums=True))


def test_the_owners_file_is_at_the_center(command, tables, tmp_path):
    answer = command(*INIT, "--advise", *FILES, "--own", "own.csv", *LABEL, "--seed", 4)
    assert answer.status == 0, answer.err
    written = tomllib.loads((tmp_path / "trial" / "federation.toml").read_text())
    assert [node["name"] for node in written["node"]] == ["a", "b", "c"]
    assert written["center"] == {"own": str(tmp_path / "own.csv")}
    job = job_of(tmp_path)
    assert isinstance(job, AdviceJob)
    assert (job.keys.own, job.keys.seed, job.federation.nodes) == (tmp_path / "own.csv", 4, 3)


def test_a_node_that_is_the_owner_is_none_any_more(command, tables, tmp_path):
    more = ["--owner", "c", "--test-fraction", 0.25]
    assert command(*INIT, "--advise", *FILES, *LABEL, *more).status == 0
    written = tomllib.loads((tmp_path / "trial" / "federation.toml").read_text())
    assert [node["name"] for node in written["node"]] == ["a", "b"]
    own, test = (
        pd.read_csv(tmp_path / "trial" / written["center"][kind]) for kind in ("own", "test")
    )
    whole = pd.read_csv(tmp_path / "c.csv")
    assert (len(own), len(test)) == (30, 10)
    pd.testing.assert_frame_equal(
        pd.concat([own, test]).sort_values("age", ignore_index=True),
        whole.sort_values("age", ignore_index=True),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*FILES, "--own", "own.csv"], "add --advise"),
        (["--advise", *FILES], "whose question is it"),
        (["--advise", *FILES[:4], "--owner", "a"], "one node"),
        (["--advise", *FILES, "--own", "few.csv"], "the owner has 8 rows"),
        (["--advise", *FILES, "--validation", "own.csv"], "--own FILE"),
        (["--advise", *FILES, "--owner", "c", "--validation-fraction", "0.2"], "into folds"),
        (["--advise", "--all", *FILES], "give one of them"),
        (["--advise", "--nodes", "4"], "nodes with tables"),
        (["--advise", "--nodes", "0"], "own = "),
    ],
)
def test_init_refuses(refused, tables, tmp_path, arguments, words):
    label = [] if "--nodes" in arguments else LABEL
    assert words in refused(*INIT, *arguments, *label)
    assert not (tmp_path / "trial").exists()


def test_options_of_learning_are_refused_before_anything_runs(refused, command, tables):
    assert command(*INIT, "--advise", *FILES, "--own", "own.csv", *LABEL).status == 0
    line = refused("federation", "run", "trial", "--out", "r", "--method", "fedavg")
    assert "four candidates" in line


def test_a_seed_that_would_be_another_one_is_refused(tables, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        f'own = "own.csv"\nlabel = "outcome"\nseed = {2**32 + 7}\n[federation]\nnodes = 3\n'
    )
    with pytest.raises(InputError, match="seed"):
        load_job(job)
