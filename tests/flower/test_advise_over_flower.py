"""The question of `fedkin advise` over Flower: what the simulation answers, and nodes that fail."""

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.advice.directory import read_advice
from fedkin.cli.app import app
from fedkin.data.table_federation import federate_request
from fedkin.data.table_request import TableRequest, gather
from fedkin.data.tables import TableFormat
from fedkin.errors import InputError
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger
from flower.fake_grid import FakeGrid
from flower.killed import killed_after
from flower.test_everyone_over_flower import with_slope

JOB = """
own = "{own}"
label = "{label}"
seed = 3
folds = 3
repeats = 1
leave-one-out = {judged}
{more}
[federation]
plain-sums = true
nodes = 3
wait = 5
"""


def table(path, rows, seed, sign=1):
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(50, 10, rows), draw.normal(3, 1, rows)
    site = draw.choice(["left", "right", "both"], rows)
    chance = sign * (0.2 * (age - 50) + (dose - 3)) + (site == "left")
    outcome = np.where(chance + draw.logistic(size=rows) > 0, "ill", "well")
    frame = pd.DataFrame({"age": age, "dose": dose, "site": site, "outcome": outcome})
    frame["days"] = 7 + chance + draw.normal(size=rows)
    frame.loc[:1, "dose"] = np.nan
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    kinds = {"a": (90, 1), "b": (110, 1), "c": (100, -1), "own": (40, 1), "test": (60, 1)}
    return {
        name: table(directory / f"{name}.csv", rows, seed, sign)
        for seed, (name, (rows, sign)) in enumerate(kinds.items())
    }


def grid(tables, tamper=None, **more):
    settings = {"label": "outcome", "drop": "days", "reproducible": True} | more
    nodes = [{"name": name, "data": str(tables[name]), **settings} for name in ("a", "b", "c")]
    return FakeGrid(nodes, tamper)


def write_job(tmp_path, tables, more='drop = "days"', label="outcome", judged="false"):
    """What the simulation does; if nodes are judged at the end, costs differ."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(own=tables["own"], label=label, more=more, judged=judged))
    return load_job(path)


def advised(job, nodes, out, *, resume=False, patience=1.0):
    messenger = Messenger(nodes, patience=patience, interval=0.01)
    job.carry_out(messenger, out, resume=resume)
    return read_advice(out)


def simulated(tables, out, *more):
    """What `fedkin advise` answers, on the same files and with the same options."""
    files = [f"--node={tables[name]}" for name in ("a", "b", "c")]
    options = ["--own", tables["own"], "--seed=3", "--folds=3", "--repeats=1", "--out", out, *more]
    app(["advise", *files, *map(str, options)], standalone_mode=False)
    return read_advice(out)


def assert_same(found, expected):
    (advice, content), (other, same_content) = found, expected
    assert (advice.verdict, advice.best) == (other.verdict, other.best)
    np.testing.assert_allclose(advice.gain, other.gain, rtol=1e-4, atol=1e-4)
    pd.testing.assert_frame_equal(advice.weights, other.weights, rtol=1e-4, atol=1e-4)
    pd.testing.assert_frame_equal(advice.candidates, other.candidates, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(advice.model.theta, other.model.theta, rtol=1e-3, atol=1e-4)
    assert advice.cost == other.cost
    for name, own in content["nodes"].items():
        theirs = same_content["nodes"][name]
        assert own["rows"] == theirs["rows"]
        assert own["missing"] == pytest.approx(theirs["missing"])
        assert own.get("mean") == pytest.approx(theirs.get("mean"))
    assert content["owner"] == same_content["owner"]
    assert content["columns"] == same_content["columns"]


@pytest.fixture(scope="module")
def whole(tables, tmp_path_factory):
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "advice"
    job = write_job(out.parent, tables, f'drop = "days"\ntest = "{tables["test"]}"')
    nodes = grid(tables)
    return advised(job, nodes, out), nodes, out


def test_it_answers_what_the_simulation_answers(tables, whole, tmp_path):
    expected = simulated(
        tables, tmp_path / "out", "--label=outcome", "--drop=days", "--test", tables["test"]
    )
    assert_same(whole[0], expected)
    assert whole[0][0].test_scores == pytest.approx(expected[0].test_scores, abs=1e-4)


def test_one_message_per_node_and_exchange_and_the_files_of_advise(whole):
    (advice, content), nodes, out = whole
    exchanges = [m for m in nodes.sent if m.content["request"]["kind"] == "exchange"]
    counts = dict.fromkeys(nodes.settings, 0)
    for message in exchanges:
        counts[message.metadata.dst_node_id] += 1
    assert max(counts.values()) == advice.cost.synchronizations
    assert {path.name for path in out.iterdir()} >= {"advice.json", "weights.csv", "candidates.csv"}
    page = (out / "report.html").read_text()
    assert "Should you join?" in page
    assert "ill, well" in page  # which classes a node has; how often stays there
    assert content["nodes"]["a"]["classes"] == {"ill": None, "well": None}
    assert not list(out.parent.glob("*.checkpoints"))


def test_folds_and_candidates_cost_hardly_more_synchronizations_than_one_fit(tables, whole):
    """One fit of the same weights: the same prior and cap."""
    request = TableRequest(
        nodes=tuple(str(tables[name]) for name in ("a", "b", "c")),
        validation=tables["own"],
        test=tables["test"],
        target_node=None,
        validation_fraction=None,
        test_fraction=None,
        label="outcome",
        task="classification",
        positive=None,
        categorical=(),
        missing_codes={},
        table_format=TableFormat(drop=("days",)),
        seed=3,
        whole_owner=True,
    )
    points = federate_request(gather(request), request)
    fitted = fedkin.fit(points.nodes, points.validation, cap=1, prior="size", seed=3)
    assert whole[0][0].cost.synchronizations <= 2 * fitted.cost.synchronizations


def test_numbers_are_learned_in_the_owners_unit(tables, tmp_path):
    """The nodes get that unit with the request to join; no row and no label leaves them."""
    more = 'drop = "outcome"\ntask = "regression"'
    job = write_job(tmp_path, tables, more, label="days")
    nodes = grid(tables, label="days", drop="outcome", task="regression")
    found = advised(job, nodes, tmp_path / "advice")
    expected = simulated(
        tables, tmp_path / "out", "--label=days", "--drop=outcome", "--task=regression"
    )
    assert_same(found, expected)


def test_a_node_that_lies_about_its_slopes_gets_no_weight(tables, tmp_path):
    """The owner is told of it once, though every fold finds it out for itself."""
    found = {}
    for judged in ("true", "false"):
        job = write_job(tmp_path, tables, judged=judged)
        liar = grid(tables, with_slope(-5.0, "c"))
        found[judged], _ = advised(job, liar, tmp_path / f"advice {judged}")
    assert found["true"].weights.loc["c", "weight"] < 0.02
    assert found["false"].weights.loc["c", "weight"] > 0.1
    said = [w for w in found["true"].model.warnings if "gets no weight" in w]
    assert len(said) == 1
    assert said[0].startswith("c gets no weight")
    losses = {judged: own.candidates.loc["learned", "loss"] for judged, own in found.items()}
    assert losses["true"] < losses["false"]


def test_where_nobody_lies_judging_changes_the_cost_only(tables, whole, tmp_path):
    job = write_job(tmp_path, tables, judged="true")
    advice, _ = advised(job, grid(tables), tmp_path / "advice")
    expected = whole[0][0]
    assert advice.verdict == expected.verdict
    columns = [name for name in advice.candidates if not name.startswith("test")]
    pd.testing.assert_frame_equal(
        advice.candidates[columns], expected.candidates[columns], atol=1e-6
    )
    pd.testing.assert_frame_equal(advice.weights, expected.weights, atol=1e-6)
    assert 0 < advice.cost.synchronizations - expected.cost.synchronizations <= 22
    assert not [warning for warning in advice.model.warnings if "gets no weight" in warning]


class Losing:
    """Takes a node away after a number of its answers."""

    def __init__(self, name, after):
        self.name, self.after, self.count, self.grid = name, after, 0, None

    def __call__(self, name, reply):
        if name == self.name:
            self.count += 1
            if self.count == self.after:
                self.grid.away.add(name)
        return reply


@pytest.mark.parametrize("after", [6, 14])
def test_a_node_that_is_lost_midway_has_no_share_and_the_others_answer(
    tables, whole, tmp_path, after
):
    """While weights are learned, or when the owner's rows are put back."""
    losing = Losing("b", after)
    losing.grid = grid(tables, losing)
    job = write_job(tmp_path, tables)
    advice, _ = advised(job, losing.grid, tmp_path / "advice", patience=0.2)
    assert losing.grid.away == {"b"}
    assert any("b was dropped" in warning for warning in advice.model.warnings)
    assert advice.weights.loc["b", ["weight", "share"]].tolist() == [0, 0]
    assert advice.weights["weight"].sum() == pytest.approx(1)
    assert "b was dropped" in (tmp_path / "advice" / "report.html").read_text()
    # What is left is what two nodes would have answered.
    assert advice.candidates.loc["learned", "loss"] == pytest.approx(
        whole[0][0].candidates.loc["learned", "loss"], rel=0.2
    )


def test_a_job_that_was_killed_is_resumed(tables, whole, tmp_path, monkeypatch):
    job = write_job(tmp_path, tables)
    nodes = grid(tables)
    with killed_after(12, monkeypatch):
        advised(job, nodes, tmp_path / "advice")
    with pytest.raises(InputError, match="continue with --resume"):
        advised(job, nodes, tmp_path / "advice")
    nodes.contexts.clear()
    advice, _ = advised(job, nodes, tmp_path / "advice", resume=True)
    expected = whole[0][0]
    columns = [name for name in advice.candidates if not name.startswith("test")]
    pd.testing.assert_frame_equal(
        advice.candidates[columns], expected.candidates[columns], atol=1e-3
    )
    pd.testing.assert_frame_equal(advice.weights, expected.weights, atol=1e-3)
    assert not list(tmp_path.glob("*.checkpoints"))
    with pytest.raises(InputError, match="finished result"):
        advised(job, nodes, tmp_path / "advice")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('validation = "x.csv"', "leave one out"),
        ('method = "fedavg"', "four candidates"),
        ('model = "mlp"', "linear models"),
        ("cap = 0.1", "cap"),
        ("fold = 3", "did you mean folds"),
    ],
)
def test_a_job_that_cannot_be_carried_out_is_refused_at_once(tables, tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        write_job(tmp_path, tables, more)


def test_a_node_with_few_rows_is_refused_before_it_learns(tables, tmp_path):
    job = write_job(tmp_path, tables, 'drop = "days"\nminimum-rows = 95')
    with pytest.raises(InputError, match="node 'a' has 90 rows"):
        advised(job, grid(tables), tmp_path / "advice")
    assert not list(tmp_path.glob("*.checkpoints"))
