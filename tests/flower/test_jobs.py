"""Jobs: what a file at the center asks for, done over Flower's messages."""

import json

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.data.summaries import TableSummary
from fedkin.data.table_federation import federate
from fedkin.data.tables import read_table
from fedkin.errors import FedkinError, InputError
from fedkin.events import EventReader, Warned
from fedkin.flower import wire
from fedkin.flower.jobs.kept_runs import KeptRuns
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger
from fedkin.methods.bilevel.method import Bilevel
from fedkin.studies.study_file import load_study
from fedkin.training import problem
from fedkin.training.checkpoint import save_checkpoint
from flower.fake_grid import FakeGrid


def table(path, rows, seed, shift=0.0):
    """Two numbers and a text; which of two classes depends on all three."""
    generator = np.random.default_rng(seed)
    age, dose = generator.normal(50, 10, rows), generator.normal(3, 1, rows)
    site = generator.choice(["left", "right", "both"], rows)
    chance = 0.1 * (age - 50) + (dose - 3) * (1 - shift) + (site == "left")
    outcome = np.where(chance + generator.logistic(size=rows) > 0, "ill", "well")
    frame = pd.DataFrame({"age": age, "dose": dose, "site": site, "outcome": outcome})
    frame.loc[:2, "dose"] = np.nan
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def tables(tmp_path):
    sizes = {"a": (60, 0.0), "b": (75, 0.0), "c": (64, 3.0)}
    nodes = {
        name: table(tmp_path / f"{name}.csv", rows, seed, shift)
        for seed, (name, (rows, shift)) in enumerate(sizes.items())
    }
    table(tmp_path / "own.csv", 50, 9)
    table(tmp_path / "test.csv", 40, 10)
    return nodes


JOB = """
validation = "own.csv"
test = "test.csv"
label = "outcome"
steps = 3
settings.rounds = 4
settings.solver_iterations = 4
{more}
[federation]
plain-sums = true
nodes = 3
"""


def write_job(tmp_path, more=""):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(more=more))
    return path


def grid(nodes, **more):
    return FakeGrid(
        [
            {"name": name, "data": str(path), "label": "outcome", "reproducible": True, **more}
            for name, path in nodes.items()
        ]
    )


def test_tables_over_flower_give_what_fit_gives(tables, tmp_path):
    grid_ = grid(tables)
    job = load_job(write_job(tmp_path))
    job.carry_out(Messenger(grid_), tmp_path / "result", resume=False)
    weights = json.loads((tmp_path / "result" / "weights.json").read_text())
    together = federate(
        {name: read_table(path, name) for name, path in tables.items()},
        read_table(tmp_path / "own.csv", "own"),
        None,
        "outcome",
    )
    expected = fedkin.fit(
        together.nodes, together.validation, classes=2, steps=3, rounds=4, solver_iterations=4
    )
    assert weights == pytest.approx(expected.weights, rel=1e-4, abs=1e-5)
    result = fedkin.load(tmp_path / "result" / "model.fedkin")
    np.testing.assert_allclose(result.theta, expected.theta, rtol=1e-3, atol=1e-4)
    # At the end, leaving out takes ten exchanges, and one for the curvature of the nodes' losses.
    assert result.cost.synchronizations == expected.cost.synchronizations + 11
    rows = pd.read_csv(tmp_path / "result" / "weights.csv").set_index("node").rows
    assert rows.to_dict() == {"a": 60, "b": 75, "c": 64}
    assert not list(tmp_path.glob("*.checkpoint.npz"))


def test_a_column_that_a_node_lacks_counts_as_missing(tables, tmp_path):
    """As in `fedkin fit`: the node takes part with zeros, and the result says so."""
    whole = pd.read_csv(tables["b"])
    lost = next(name for name in whole.columns if name != "outcome")
    whole.drop(columns=lost).to_csv(tables["b"], index=False)
    job = load_job(write_job(tmp_path))
    job.carry_out(Messenger(grid(tables)), tmp_path / "result", resume=False)
    result = fedkin.load(tmp_path / "result" / "model.fedkin")
    assert result.warnings[0].startswith(f"node 'b' has no column '{lost}': it counts as missing")
    events = EventReader(tmp_path / "result.events.jsonl").new()
    assert [each.message for each in events if isinstance(each, Warned)] == list(result.warnings)
    together = federate(
        {name: read_table(path, name) for name, path in tables.items()},
        read_table(tmp_path / "own.csv", "own"),
        None,
        "outcome",
    )
    expected = fedkin.fit(
        together.nodes, together.validation, classes=2, steps=3, rounds=4, solver_iterations=4
    )
    assert result.weights == pytest.approx(expected.weights, rel=1e-4, abs=1e-5)


def test_strict_jobs_and_strict_nodes_refuse_tables_that_differ(tables, tmp_path):
    whole = pd.read_csv(tables["b"])
    lost = next(name for name in whole.columns if name != "outcome")
    whole.drop(columns=lost).to_csv(tables["b"], index=False)
    job = load_job(write_job(tmp_path, "strict = true"))
    with pytest.raises(InputError, match=f"'{lost}' is missing on node 'b'"):
        job.carry_out(Messenger(grid(tables)), tmp_path / "result", resume=False)
    job = load_job(write_job(tmp_path))
    with pytest.raises(FedkinError, match="b cannot take part"):
        job.carry_out(Messenger(grid(tables, strict=True)), tmp_path / "other", resume=False)


def test_a_job_on_tables_reports_its_events_beside_the_result(tables, tmp_path):
    job = load_job(write_job(tmp_path))
    job.carry_out(Messenger(grid(tables)), tmp_path / "deep" / "result", resume=False)
    result = fedkin.load(tmp_path / "deep" / "result" / "model.fedkin")
    started, *steps, finished = EventReader(tmp_path / "deep" / "result.events.jsonl").new()
    assert started.nodes == ("a", "b", "c")
    assert started.resumed_after is None
    assert [event.validation_loss for event in steps] == result.history.validation_loss.tolist()
    assert finished.stopped == result.stopped


def test_no_row_crosses_the_wire(tables, tmp_path):
    grid_ = grid(tables)
    load_job(write_job(tmp_path)).carry_out(Messenger(grid_), tmp_path / "result", resume=False)
    size = fedkin.load(tmp_path / "result" / "model.fedkin").theta.size
    rows = pd.concat([pd.read_csv(path) for path in tables.values()])
    texts = {f"{number:.5f}" for number in rows.age}
    for message in [*grid_.sent, *grid_.received]:
        (kind,) = message.content
        parcel = wire.unpack(kind, message.content, 4 * size)
        # One vector, or one for each model: the learned one and those without a node.
        assert all(array.shape[-1] == size for array in parcel.vectors.values())
        assert all(array.ndim == 1 or array.shape[0] <= 4 for array in parcel.vectors.values())
        for value in parcel.values.values():
            assert not isinstance(value, list) or len(value) <= 4
            if isinstance(value, str):
                assert not any(text in value for text in texts)


class KilledError(Exception):
    """The center's process is gone."""


@pytest.fixture
def killed(tables, tmp_path, monkeypatch):
    """A job whose center was killed after its first step; its nodes live on."""
    nodes = grid(tables)
    path = write_job(tmp_path)
    path.write_text(path.read_text() + "wait = 0.1")
    kill_after_first_step(load_job(path), nodes, tmp_path, monkeypatch)
    return load_job(path), nodes


def kill_after_first_step(job, nodes, tmp_path, monkeypatch):
    def save_and_die(*arguments):
        save_checkpoint(*arguments)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(problem, "save_checkpoint", save_and_die)
        with pytest.raises(KilledError):
            job.carry_out(Messenger(nodes), tmp_path / "result", resume=False)


def test_a_job_on_tables_continues_as_if_it_had_not_been_killed(killed, tables, tmp_path):
    job, nodes = killed
    with pytest.raises(InputError, match="continue with --resume, or delete it"):
        job.carry_out(Messenger(nodes), tmp_path / "result", resume=False)
    job.carry_out(Messenger(nodes), tmp_path / "result", resume=True)
    kinds = [event.kind for event in EventReader(tmp_path / "result.events.jsonl").new()]
    # Killed, refused without --resume, then resumed.
    assert kinds == ["started", "failed", "failed", "started", "step", "step", "finished"]
    job.carry_out(Messenger(grid(tables)), tmp_path / "undisturbed", resume=False)
    found, expected = (
        fedkin.load(tmp_path / name / "model.fedkin") for name in ("result", "undisturbed")
    )
    np.testing.assert_array_equal(found.theta, expected.theta)
    assert found.weights == expected.weights
    assert not list(tmp_path.glob("*.checkpoint.npz"))


def test_a_job_on_tables_is_resumed_without_a_node_that_is_gone(killed, tmp_path, caplog):
    job, nodes = killed
    nodes.away.add("c")
    with caplog.at_level("INFO"):
        job.carry_out(Messenger(nodes), tmp_path / "result", resume=True)
    (record,) = [record for record in caplog.records if "c is missing" in record.message]
    assert record.name == "fedkin.flower.jobs.event_log"
    assert record.message == "c is missing: the others begin without it"
    weights = json.loads((tmp_path / "result" / "weights.json").read_text())
    assert weights["c"] == 0
    assert weights["a"] + weights["b"] == pytest.approx(1, abs=1e-6)


def test_a_node_that_comes_back_with_another_table_may_not_join(killed, tables, tmp_path):
    job, nodes = killed
    nodes.away.add("c")
    asked = []

    def return_late(name, reply):
        asked.append(name)
        if len(asked) == 8:
            table(tables["c"], 64, 99)
            nodes.away.clear()
        return reply

    nodes.tamper = return_late
    job.carry_out(Messenger(nodes), tmp_path / "result", resume=True)
    result = fedkin.load(tmp_path / "result" / "model.fedkin")
    assert result.weights["c"] == 0
    assert any("c is back with another table" in warning for warning in result.warnings)


def test_a_node_that_is_started_again_with_another_table_may_not_join(tables, tmp_path):
    """It answers that it has not joined, too few times to be dropped before the next step."""
    nodes = grid(tables)
    path = write_job(tmp_path)
    path.write_text(path.read_text().replace("= 4", "= 1"))

    def start_again(name, reply):
        if nodes.sent[-1].content["request"].get("step") == 1:
            nodes.tamper = lambda name, reply: reply
            table(tables["c"], 64, 99)
            nodes.forget("c")
        return reply

    nodes.tamper = start_again
    load_job(path).carry_out(Messenger(nodes), tmp_path / "result", resume=False)
    result = fedkin.load(tmp_path / "result" / "model.fedkin")
    assert any("c is back with another table" in warning for warning in result.warnings)
    kinds = [sent.content["request"]["kind"] for sent in nodes.sent]
    assert kinds.count("join") == 3


def test_a_job_on_tables_is_not_resumed_with_other_data(killed, tables, tmp_path):
    job, nodes = killed

    def refused(nodes, words):
        with pytest.raises(InputError, match=words):
            job.carry_out(Messenger(nodes), tmp_path / "result", resume=True)

    own = (tmp_path / "own.csv").read_text()
    table(tmp_path / "own.csv", 50, 98)
    refused(nodes, r"was made with other tables \(validation \w+, now \w+\)")
    (tmp_path / "own.csv").write_text(own)
    table(tables["b"], 75, 99)
    refused(nodes, "the table of b has changed")
    others = grid({"a": tables["a"], "d": tables["c"]})
    refused(others, r"d is not among the nodes .* \(a, b, c\)")
    (checkpoint,) = tmp_path.glob("*.checkpoint.npz")
    for content in (b"spoilt", b""):
        checkpoint.write_bytes(content)
        refused(nodes, "damaged or of another version: delete it")
    checkpoint.unlink()
    refused(nodes, "nothing to resume")


def test_a_job_with_one_node_is_resumed(tables, tmp_path, monkeypatch):
    path = write_job(tmp_path)
    path.write_text(path.read_text().replace("nodes = 3", "nodes = 1"))
    nodes = grid({"a": tables["a"]})
    kill_after_first_step(load_job(path), nodes, tmp_path, monkeypatch)
    load_job(path).carry_out(Messenger(nodes), tmp_path / "result", resume=True)
    assert fedkin.load(tmp_path / "result" / "model.fedkin").weights == {"a": 1.0}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("modle = 'logistic'", "did you mean model"),
        ("model = 'ridge'", "ridge gives numbers"),
        ("method = 'magic'", "method"),
        ("settings.outer_learning_rate = 0.1", "outer_learning_rate is chosen by"),
        ("settings.gamma = 0.1", "gamma"),
    ],
)
def test_slips_in_a_job_are_reported_before_any_node_is_asked(tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        load_job(write_job(tmp_path, more))


def test_a_job_needs_its_nodes(tables, tmp_path):
    path = write_job(tmp_path)
    path.write_text(path.read_text().replace("nodes = 3", "nodes = 4\nwait = 0.1"))
    with pytest.raises(InputError, match=r"3 of 4 nodes are ready after 0.1 s \(a, b, c\)"):
        load_job(path).carry_out(Messenger(grid(tables)), tmp_path / "result", resume=False)
    path.write_text(path.read_text().replace("nodes = 4", ""))
    with pytest.raises(InputError, match="how many nodes"):
        load_job(path)


def test_a_node_that_refuses_is_named(tables, tmp_path):
    refusing = grid(tables, **{"minimum-points": 62})
    path = write_job(tmp_path)
    path.write_text(path.read_text() + "wait = 0.1")
    with pytest.raises(InputError, match=r"2 of 3 .*see its owner's log"):
        load_job(path).carry_out(Messenger(refusing), tmp_path / "result", resume=False)


STUDY = """
dataset = "digits"
setting = 2
method = ["bilevel", "fedavg"]
{more}
[settings]
learning_rate = 0.05
"""


def test_a_study_over_flower_is_the_study_in_simulation(tmp_path):
    """The same file gives the same runs, with the same settings: there is one set of defaults."""
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(more=""))
    job, study = load_job(path).study, load_study(path)
    assert job == study
    bilevel, _ = job.runs()
    assert bilevel.settings == {"preset": "automatic", "learning_rate": 0.05}
    path.write_text(STUDY.format(more="") + "preset = 'paper'\n")
    assert load_job(path).study == load_study(path)
    bilevel, _ = load_job(path).study.runs()
    assert bilevel.settings == {"preset": "paper", "learning_rate": 0.05}
    assert bilevel.chosen_method.chosen_solver.name == "svrg"  # the paper's


def test_a_job_on_tables_has_the_defaults_of_fit(tmp_path):
    method = load_job(write_job(tmp_path)).method
    assert method == Bilevel.from_settings({"rounds": 4, "solver_iterations": 4})
    assert method.chosen_solver.name == "cg"
    assert method.default_steps == 50
    paper = load_job(write_job(tmp_path, "settings.preset = 'paper'")).method
    assert paper.chosen_solver.name == "svrg"
    assert paper.default_steps == 20


def test_a_file_that_is_no_job_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read the job"):
        load_job(tmp_path / "none.toml")
    path = tmp_path / "job.toml"
    path.write_text("dataset = ")
    with pytest.raises(InputError, match="not valid TOML"):
        load_job(path)
    path.write_text(STUDY.format(more="") + "[federation]\npatience = -1")
    with pytest.raises(InputError, match=r"federation\.patience"):
        load_job(path)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a": 1}', '{"a": {"rows": "many"}}', "[" * 10_000]
)
def test_a_damaged_record_of_the_nodes_is_refused(content, tmp_path):
    kept = KeptRuns(tmp_path)
    (tmp_path / "nodes.json").write_text(content)
    with pytest.raises(InputError, match="cannot be read: delete"):
        kept.read_nodes(dict[str, TableSummary])
