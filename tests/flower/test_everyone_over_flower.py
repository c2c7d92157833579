"""Everyone's question over Flower's messages: what the simulation gives, and a node that is lost."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedkin
from federation.test_together import rounds, share
from fedkin.data.labels import prepare_label, split_rows
from fedkin.data.table_federation import federate_owners
from fedkin.data.table_request import OwnersTables
from fedkin.data.tables import read_table
from fedkin.errors import FedkinError, InputError
from fedkin.flower import wire
from fedkin.flower.jobs.kept_runs import KeptRuns
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger
from fedkin.flower.node_memory import NodeMemory
from fedkin.flower.wire import MOST_MODELS, Parcel
from fedkin.methods.registry import METHODS as KNOWN_METHODS
from fedkin.methods.registry import PAPER_METHODS, method_class
from fedkin.training import map_directory
from flower.fake_grid import FakeGrid
from flower.killed import killed_after

VALIDATION, TEST, SEED = 0.25, 0.2, 3
RIVALS = [name for name in KNOWN_METHODS.names() if name not in PAPER_METHODS]

JOB = """
validation-fraction = 0.25
label = "outcome"
seed = 3
leave-one-out = {judged}
{more}
[federation]
plain-sums = true
nodes = 4
wait = {wait}
"""


def table(path, rows, seed, sign):
    """Two groups of nodes: what a number says about the outcome has the other sign in the second."""
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(50, 10, rows), draw.normal(3, 1, rows)
    site = draw.choice(["left", "right", "both"], rows)
    chance = sign * (0.2 * (age - 50) + (dose - 3)) + (site == "left")
    outcome = np.where(chance + draw.logistic(size=rows) > 0, "ill", "well")
    frame = pd.DataFrame({"age": age, "dose": dose, "site": site, "outcome": outcome})
    frame.loc[:1, "dose"] = np.nan
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    kinds = {"a": (90, 1), "b": (110, 1), "c": (100, -1), "d": (80, -1)}
    return {
        name: table(directory / f"{name}.csv", rows, seed, sign)
        for seed, (name, (rows, sign)) in enumerate(kinds.items())
    }


def grid(tables, tamper=None, **more):
    settings = {
        "label": "outcome",
        "validation-fraction": VALIDATION,
        "test-fraction": TEST,
        "reproducible": True,
    }
    nodes = [
        {"name": name, "data": str(path), "seed": SEED, **settings, **more}
        for name, path in tables.items()
    ]
    return FakeGrid(nodes, tamper)


def write_job(tmp_path, more="", wait=5, judged="false"):
    """What the simulation does; if nodes are judged at the end, costs differ."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(more=more, wait=wait, judged=judged))
    return load_job(path)


def simulated(tables, label="outcome", task="classification", **settings):
    """What `fit_all` gives with the same split."""
    parts = {}
    for name, path in tables.items():
        whole = prepare_label(read_table(path, name), label, task, None, {})
        validation, test, rest = split_rows(
            whole, label, [VALIDATION, TEST], SEED, stratify=task == "classification"
        )
        parts[name] = OwnersTables(rest, validation, test)
    owners = federate_owners(parts, label, task).nodes
    return fedkin.fit_all(
        {name: tuple(own.train) for name, own in owners.items()},
        validations={name: tuple(own.validation) for name, own in owners.items()},
        tests={name: tuple(own.test) for name, own in owners.items()},
        classes=2 if task == "classification" else None,
        task=task,
        seed=SEED,
        **settings,
    )


def learned(job, nodes, tmp_path):
    job.carry_out(Messenger(nodes, patience=1.0, interval=0.01), tmp_path / "map", resume=False)
    return fedkin.Collaboration.load(tmp_path / "map" / "everyone.fedkin")


def assert_same(found, expected):
    if expected.matrix is None:
        assert found.matrix is None
    else:
        pd.testing.assert_frame_equal(found.matrix, expected.matrix, atol=1e-4, rtol=1e-4)
    pd.testing.assert_frame_equal(found.scores, expected.scores, atol=1e-4, rtol=1e-4)
    for name, model in expected.models.items():
        np.testing.assert_allclose(found.models[name].theta, model.theta, rtol=1e-3, atol=1e-4)
        assert found.models[name].cost == model.cost
    assert found.groups == expected.groups
    assert found.scored_on == expected.scored_on == "test"


def test_it_gives_what_the_simulation_gives(tables, tmp_path):
    """To the end; a step is two synchronizations."""
    expected = simulated(tables, compare=[])
    found = learned(write_job(tmp_path, "compare = []"), grid(tables), tmp_path)
    assert_same(found, expected)
    assert found.groups == (("a", "b"), ("c", "d"))
    steps = max(len(model.history) for model in found.models.values())
    # One before the first step, and one for the final scores; an owner may converge within a step.
    assert found.cost.synchronizations <= 2 * steps + 2


METHODS = {
    "local": {"method": "local", "rounds": 3},
    "fedavg": {"method": "fedavg", "rounds": 3},
    "ditto": {"method": "ditto", "rounds": 3, "personal_steps": 4},
    "pfedme": {"method": "pfedme", "rounds": 2},
    # Steps so short that no weight is zero: which are depends on rounding, and decides who is asked.
    "proximal": {
        "method": "bilevel",
        "outer": "proximal",
        "outer_learning_rate": 0.05,
        "rounds": 3,
        "solver_iterations": 2,
    },
    "mlp": {"method": "bilevel", "model": "mlp", "period": 3},
    **{name: {"method": name, "rounds": 2} for name in RIVALS},
}
SLOW = ("mlp", "ditto", "pfedme", *(set(RIVALS) - {"fedamp"}))  # to compile


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.flower] * (case in SLOW)) for case in METHODS],
)
def test_other_methods_and_models_give_what_the_simulation_gives(case, tables, tmp_path):
    given = dict(METHODS[case])
    allowed = {"reveal": method_class(given["method"]).reveals_models}
    expected = simulated(tables, compare=[], steps=3, **given)
    named = [f'{name} = "{given.pop(name)}"' for name in ("method", "model") if name in given]
    settings = [f"settings.{name} = {json.dumps(value)}" for name, value in given.items()]
    job = write_job(tmp_path, "\n".join(["compare = []", "steps = 3", *named, *settings]))
    assert_same(learned(job, grid(tables, **allowed), tmp_path), expected)


def test_a_method_that_compares_models_needs_the_owners_consent(tables, tmp_path):
    job = write_job(tmp_path, 'compare = []\nsteps = 1\nmethod = "fedamp"\nsettings.rounds = 1')
    with pytest.raises(FedkinError, match="does not allow requests for its own vectors"):
        learned(job, grid(tables), tmp_path)


def test_a_node_may_give_more_weight_to_its_own_rows(tables, tmp_path):
    """As in the simulation; here the cap is a setting of the job."""
    expected = simulated(tables, compare=[], cap=0.4, own_cap=0.9, steps=4)
    more = "compare = []\nsteps = 4\nsettings.cap = 0.4\nsettings.own_cap = 0.9"
    found = learned(write_job(tmp_path, more), grid(tables), tmp_path)
    assert_same(found, expected)
    assert found.models["d"].cap == {"a": 0.4, "b": 0.4, "c": 0.4, "d": 0.9}


def test_regression_gives_what_the_simulation_gives(tables, tmp_path):
    """Scores of single models are in the label's own unit."""
    expected = simulated(tables, "age", "regression", model="ridge", compare=[], steps=3)
    path = tmp_path / "job.toml"
    more = 'compare = []\nsteps = 3\ntask = "regression"'
    text = JOB.format(more=more, wait=5, judged="false")
    path.write_text(text.replace("outcome", "age"))
    found = learned(load_job(path), grid(tables, label="age", task="regression"), tmp_path)
    assert_same(found, expected)
    metrics = json.loads((tmp_path / "map" / "owners" / "a" / "metrics.json").read_text())
    assert 5 < metrics["test"]["rmse"] < 15  # years; their standard deviation is 10


def test_it_writes_what_fedkin_map_writes(tables, tmp_path):
    """Files, scores of single models, and what a reader is told."""
    learned(write_job(tmp_path, "steps = 2"), grid(tables), tmp_path)
    written = {path.name for path in (tmp_path / "map").iterdir()}
    assert written == map_directory.FILES - {"report.html"}  # the command adds the page
    metrics = json.loads((tmp_path / "map" / "owners" / "c" / "metrics.json").read_text())
    assert set(metrics) == {"validation", "test"}
    assert metrics["validation"]["rows"] == 25
    assert set(metrics["test"]) == {"rows", "accuracy", "log_loss", "auc"}
    model = fedkin.load(tmp_path / "map" / "owners" / "c" / "model.fedkin")
    assert model.weights is not None
    rows = json.loads((tmp_path / "map" / "rows.json").read_text())
    assert rows == {"a": 50, "b": 60, "c": 55, "d": 44}
    assert not list(tmp_path.glob("*.checkpoints"))


def test_no_row_crosses_the_wire(tables, tmp_path):
    nodes = grid(tables)
    learned(write_job(tmp_path, "steps = 2"), nodes, tmp_path)
    size = fedkin.load(tmp_path / "map" / "owners" / "a" / "model.fedkin").theta.size
    cells = np.concatenate(
        [pd.read_csv(path)[["age", "dose"]].to_numpy().ravel() for path in tables.values()]
    )
    numbers = []
    for message in [*nodes.sent, *nodes.received]:
        (kind,) = message.content.config_records
        parcel = wire.unpack(kind, message.content, 100 * size)
        assert {array.shape[-1] for array in parcel.vectors.values()} <= {size}
        for value in parcel.values.values():
            each = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", value) if isinstance(value, str) else value
            numbers += np.ravel(np.asarray(each, float)).tolist()
    said = np.array(numbers)[np.isfinite(numbers)]  # final scores that do not exist are NaN
    assert len(said) > 100  # means and squared deviations, scores, slopes
    for cell in cells[np.isfinite(cells)]:
        assert np.abs(said - cell).min() > 1e-7


def test_an_exchange_is_one_message_per_node(tables, tmp_path):
    """However many owners there are: descriptions, joining, and as many messages as synchronizations."""
    nodes = grid(tables)
    job = write_job(tmp_path, "steps = 2\ncompare = []")
    found = learned(job, nodes, tmp_path)
    kinds = [message.content["request"]["kind"] for message in nodes.sent]
    assert [kinds.count(kind) for kind in ("describe", "join")] == [len(nodes.settings)] * 2
    # Before the first step, two per step, and the final scores.
    assert found.cost.synchronizations == 1 + 2 * 2 + 1
    assert kinds.count("exchange") == len(nodes.settings) * found.cost.synchronizations


class Losing:
    """Makes a node go away after it has answered some exchanges, and come back after some of the others."""

    def __init__(self, name, after, back_after=None):
        self.name, self.after, self.back_after = name, after, back_after
        self.count = {}
        self.grid = None

    def __call__(self, name, reply):
        if reply.has_content() and any("evaluations" in key for key in reply.content["answer"]):
            self.count[name] = self.count.get(name, 0) + 1
        if self.count.get(self.name, 0) == self.after and name == self.name:
            self.grid.away.add(self.name)
        others = max((n for other, n in self.count.items() if other != self.name), default=0)
        if self.back_after is not None and others >= self.back_after:
            self.grid.away.discard(self.name)
        return reply


def lose(tables, tmp_path, losing, **job):
    nodes = grid(tables, losing)
    losing.grid = nodes
    path = write_job(tmp_path, **job)
    path.carry_out(Messenger(nodes, patience=0.3, interval=0.01), tmp_path / "map", resume=False)
    return fedkin.Collaboration.load(tmp_path / "map" / "everyone.fedkin")


def test_a_node_that_is_lost_is_lost_for_all_and_its_own_question_has_no_answer(tables, tmp_path):
    found = lose(tables, tmp_path, Losing("d", after=6), wait=0.2)
    assert list(found.failures) == ["d"]
    assert "its own question has no answer" in found.failures["d"]
    assert found.matrix.loc["d"].isna().all()
    others = found.matrix.loc[["a", "b", "c"]]
    assert (others["d"] == 0).all()
    np.testing.assert_allclose(others.sum(axis=1), 1, atol=1e-5)
    assert any("d was dropped" in warning for warning in found.warnings)
    assert np.isfinite(found.scores.loc[["a", "b", "c"], "bilevel"]).all()


def test_a_node_that_comes_back_gets_its_answer(tables, tmp_path):
    found = lose(tables, tmp_path, Losing("d", after=6, back_after=14), wait=60)
    assert found.failures == {}
    assert any("d is back" in warning for warning in found.warnings)
    assert found.groups == (("a", "b"), ("c", "d"))


def connected(nodes, tmp_path):
    """Return the nodes of a job as a federation, before it begins."""
    job, messenger = write_job(tmp_path), Messenger(nodes, interval=0.01)
    nodes, described = job._nodes(
        messenger, KeptRuns.of_result(tmp_path / "map", "0"), resume=False
    )
    return job._connect(messenger, nodes, described, job._agree(described).preprocessing)


def test_owners_that_part_get_what_each_would_get_alone(tables, tmp_path):
    """Nodes copy what they remember for owners that asked alike, and forget owners that have ended."""
    job = {"weights": [0.4, 0.2, 0.2, 0.2], "key": 1, "count": 5}
    jobs = [job, {**job, "key": 2, "count": 2}, {**job, "others_from": 3}]
    alone = [rounds(connected(grid(tables), tmp_path), **each) for each in jobs]
    nodes = grid(tables)
    outcomes, cost = share(jobs, connected(nodes, tmp_path))
    for (seen, _), (expected, _) in zip(outcomes, alone, strict=True):
        for array, other in zip(seen, expected, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-7)
    assert cost.synchronizations == 5
    # The first three exchanges are the same for the first and the last.
    assert cost.bytes_up < sum(own.bytes_up for _, own in alone)
    for context in nodes.contexts.values():
        series = NodeMemory(context.state).slots().series
        # The second owner ended while the others asked on.
        assert len({int(place.rpartition("/")[2]) // MOST_MODELS for place in series}) == 2


def with_slope(value, liar):
    """Let a node report this slope to every owner."""

    def tamper(name, reply):
        if name == liar and reply.has_content() and "answer" in reply.content:
            parcel = wire.unpack("answer", reply.content, 10**6)
            lies = {
                place: [value] * len(true) if isinstance(true, list) else value
                for place, true in parcel.values.items()
                if place.endswith("slope.number.slope")
            }
            reply.content = wire.pack("answer", Parcel({**parcel.values, **lies}, parcel.vectors))
        return reply

    return tamper


def noisy(tables, tmp_path):
    """Return the tables, and one of a node whose labels are noise."""
    frame = pd.read_csv(tables["b"])
    draw = np.random.default_rng(5)
    frame["outcome"] = draw.choice(["ill", "well"], len(frame))
    frame.to_csv(tmp_path / "e.csv", index=False)
    return {**tables, "e": tmp_path / "e.csv"}


def test_every_owner_finds_out_who_lies(tables, tmp_path):
    tables = noisy(tables, tmp_path)
    found = {}
    for judged in ("true", "false"):
        out = tmp_path / judged
        out.mkdir()
        job = write_job(out, "compare = []", judged=judged)
        job = replace(job, federation=job.federation.model_copy(update={"nodes": 5}))
        found[judged] = learned(job, grid(tables, with_slope(-5.0, "e")), out)
    victims = ["a", "b", "c", "d"]
    assert (found["true"].matrix.loc[victims, "e"] < 0.02).all()
    assert (found["false"].matrix.loc[victims, "e"] > 0.1).any()
    said = [warning for warning in found["true"].warnings if "gets no weight" in warning]
    assert {warning.split()[0] for warning in said} == {"e"}
    kin = found["true"].matrix
    assert all(kin.loc[own, list(pair)].sum() > 0.6 for pair in ("ab", "cd") for own in pair)


def test_where_nobody_lies_judging_changes_the_cost_only(tables, tmp_path):
    expected = simulated(tables, compare=[])
    found = learned(write_job(tmp_path, "compare = []", judged="true"), grid(tables), tmp_path)
    pd.testing.assert_frame_equal(found.matrix, expected.matrix, atol=1e-4, rtol=1e-4)
    for name, model in expected.models.items():
        np.testing.assert_allclose(found.models[name].theta, model.theta, rtol=1e-3, atol=1e-4)
        more = found.models[name].cost.synchronizations - model.cost.synchronizations
        assert more == 11  # one for the step size, and ten rounds
    assert not [warning for warning in found.warnings if "weight" in warning]


def test_an_owner_that_diverges_leaves_the_others_undisturbed(tables, tmp_path):
    """Its node's gradient is NaN; the others get what they would get anyway."""

    def tamper(name, reply):
        if name == "d" and reply.has_content():
            parcel = wire.unpack("answer", reply.content, 10**6)
            vectors = {
                place: np.full_like(array, np.nan)
                if ".question.vector.gradient" in place
                else array
                for place, array in parcel.vectors.items()
            }
            reply.content = wire.pack("answer", Parcel(parcel.values, vectors))
        return reply

    job = write_job(tmp_path, "compare = []\nsteps = 4")
    found = learned(job, grid(tables, tamper), tmp_path)
    assert list(found.failures) == ["d"]
    assert "diverged" in found.failures["d"]
    expected = simulated(tables, compare=[], steps=4)
    others = ["a", "b", "c"]
    pd.testing.assert_frame_equal(found.matrix.loc[others], expected.matrix.loc[others], atol=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('validation = "own.csv"', "leave one of them out"),
        ("settings.prior = [1, 1, 1, 1]", "prior"),
        ('colour = "red"', "unknown key colour"),
        ('model = "cnn"', "cnn"),
        ("settings.cap = 0.1", "cap"),
        ('compare = ["lokal"]', "lokal"),
    ],
)
def test_a_job_that_cannot_be_carried_out_is_refused_at_once(tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        write_job(tmp_path, more)


def test_a_share_of_rows_lies_between_0_and_1(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(more="", wait=5, judged="false").replace("0.25", "1.5"))
    with pytest.raises(InputError, match="validation-fraction"):
        load_job(path)


def test_one_node_has_nobody_to_learn_with(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(more="", wait=5, judged="false").replace("nodes = 4", "nodes = 1"))
    with pytest.raises(InputError, match="nobody to learn with"):
        load_job(path)


def test_a_node_that_holds_no_rows_out_cannot_be_an_owner(tables, tmp_path):
    nodes = grid(tables)
    for own in nodes.settings.values():
        if own["name"] == "b":
            del own["validation-fraction"], own["test-fraction"]
    with pytest.raises(InputError, match=r"b holds no rows out.*validation-fraction"):
        learned(write_job(tmp_path), nodes, tmp_path)


def test_a_node_that_does_not_allow_questions_gets_no_answer(tables, tmp_path):
    """What its owner refuses is refused; the others learn without it."""
    nodes = grid(tables)
    own = next(own for own in nodes.settings.values() if own["name"] == "d")
    own["allow"] = "describe,gradient,hessian_product,slope"
    found = learned(write_job(tmp_path, "compare = []"), nodes, tmp_path)
    assert list(found.failures) == ["d"]
    assert "does not allow validation_gradient" in found.failures["d"]


def test_a_finished_result_and_old_checkpoints_are_not_written_over(tables, tmp_path):
    job, messenger = write_job(tmp_path, "steps = 1"), Messenger(grid(tables), interval=0.01)
    with pytest.raises(InputError, match="nothing to resume"):
        job.carry_out(messenger, tmp_path / "map", resume=True)
    job.carry_out(messenger, tmp_path / "map", resume=False)
    with pytest.raises(InputError, match="finished result"):
        job.carry_out(messenger, tmp_path / "map", resume=False)


DITTO = """
method = "ditto"
steps = 4
settings.rounds = 2
settings.personal_steps = 4
settings.learning_rate = 0.1
"""


@pytest.mark.parametrize("more", ["", DITTO], ids=["bilevel", "ditto"])
def test_a_job_that_was_killed_is_resumed(more, tables, tmp_path, monkeypatch):
    """Each owner continues from its own last step; the nodes remember nothing of the first attempt."""
    job = write_job(tmp_path, f"compare = []{more}")
    whole = learned(job, grid(tables), tmp_path)
    nodes = grid(tables)
    with killed_after(10, monkeypatch):
        job.carry_out(Messenger(nodes, interval=0.01), tmp_path / "again", resume=False)
    with pytest.raises(InputError, match="continue with --resume"):
        job.carry_out(Messenger(nodes, interval=0.01), tmp_path / "again", resume=False)
    nodes.contexts.clear()
    job.carry_out(Messenger(nodes, interval=0.01), tmp_path / "again", resume=True)
    found = fedkin.Collaboration.load(tmp_path / "again" / "everyone.fedkin")
    if whole.matrix is not None:
        pd.testing.assert_frame_equal(found.matrix, whole.matrix, atol=1e-5)
    pd.testing.assert_frame_equal(found.scores, whole.scores, atol=1e-5)
    for name, model in whole.models.items():
        losses = found.models[name].history["validation_loss"]
        np.testing.assert_allclose(losses, model.history["validation_loss"], atol=1e-5)
    assert not list(tmp_path.glob("*.checkpoints"))
