import numpy as np
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.federation.bad_updates import BadUpdates
from fedkin.federation.simulation import SimulatedFederation
from fedkin.studies.cell import draw_problem, simulate
from fedkin.studies.config import RunConfig
from fedkin.studies.study_file import check_study, load_study


def study(**content):
    return check_study({"dataset": "digits", **content}, "study.toml")


def test_a_study_is_every_combination_of_its_lists():
    runs = list(
        study(
            setting=[1, 2],
            target=["minority", "majority"],
            method=["bilevel", "fedavg"],
            seed=[0, 1, 2],
            settings={"learning_rate": [0.05, 0.02], "bilevel": {"cap": [0.3, 0.5]}},
        ).runs()
    )
    # settings x targets x seeds x (bilevel: 2 rates x 2 caps; fedavg: 2 rates, it has no cap)
    assert len(runs) == 2 * 2 * 3 * (4 + 2)
    assert len({run.directory for run in runs}) == len(runs)
    assert {run.settings.get("cap") for run in runs if run.method == "fedavg"} == {None}


def test_open_parameters_come_from_the_data_unless_the_study_names_a_preset():
    automatic, by_name = study(setting=1, method="bilevel").runs()[0], {"preset": "automatic"}
    assert automatic.settings == by_name
    assert automatic == study(setting=1, method="bilevel", settings=by_name).runs()[0]
    assert automatic.ask_all is False
    (paper,) = study(setting=1, method="bilevel", settings={"preset": "paper"}).runs()
    assert paper.settings == {"preset": "paper"}
    assert paper.ask_all is None  # which stands for yes
    both = study(setting=1, method=["bilevel", "fedavg"], settings={"fedavg": {"preset": "paper"}})
    assert [run.settings["preset"] for run in both.runs()] == ["automatic", "paper"]


def test_a_group_of_nodes_may_be_empty():
    """The federation of the nodes like the owner alone has the data that these have among the others."""
    whole = study(setting=4, target=["minority", "majority"], method="fedavg", seed=3)
    kin = {
        "minority": study(setting=4, method="fedavg", seed=3, majority_nodes=0),
        "majority": study(setting=4, target="majority", method="fedavg", seed=3, minority_nodes=0),
    }
    for run in whole.runs():
        (alone,) = kin[run.target].runs()
        every, some = draw_problem(run).data, draw_problem(alone).data
        assert len(some.nodes) == {"minority": 5, "majority": 10}[run.target]
        assert all(some.similar)
        of_kin = dict(zip(every.names, every.nodes, strict=True))
        for name, points in zip(some.names, some.nodes, strict=True):
            np.testing.assert_array_equal(points.inputs, of_kin[name].inputs)
            np.testing.assert_array_equal(points.labels, of_kin[name].labels)
        for part in ("validation", "test"):
            np.testing.assert_array_equal(getattr(some, part)[0], getattr(every, part)[0])
            np.testing.assert_array_equal(getattr(some, part)[1], getattr(every, part)[1])


def test_the_directory_name_depends_on_the_config_alone():
    one = RunConfig(dataset="digits", setting=1, settings={"preset": "paper"})
    again = RunConfig.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.directory == one.directory
    assert one.directory.startswith("digits-1-minority-bilevel-0-")
    assert one.model_copy(update={"synchronizations": 801}).directory != one.directory
    assert one.model_copy(update={"synchronizations": None}).directory != one.directory
    # Published results are found by this name: it must not change when parameters are added.
    assert one.directory == "digits-1-minority-bilevel-0-ed18c364f098"


def test_the_order_of_the_parameters_in_a_file_does_not_matter():
    """Runs with the same parameters share one text for them, in tables and in the index."""
    given = {
        "outer_learning_rate": 1,
        "preset": "paper",
        "damping": 0.5,
        "solver": "cg",
        "period": 5,
        "learning_rate": 0.1,
    }
    made = [
        RunConfig(dataset="digits", setting=1, settings=dict(items))
        for items in (given.items(), reversed(given.items()))
    ]
    assert made[0].directory == made[1].directory
    for run in made:
        assert list(run.settings) == [
            *("preset", "learning_rate", "period", "solver", "damping", "outer_learning_rate")
        ]


def test_candidates_are_short_runs_on_the_first_seed():
    made = study(
        setting=1,
        seed=[3, 4],
        method=["bilevel", "fedavg"],
        tune={"bilevel": {"learning_rate": [0.05, 0.02], "outer_learning_rate": [0.1, 0.2, 0.3]}},
        settings={"preset": "paper", "period": 10},
    )
    bilevel, _, fedavg, _ = made.runs()
    trials = made.candidates(bilevel)
    assert len(trials) == 6
    assert {(t.seed, t.steps, t.synchronizations, t.settings["period"]) for t in trials} == {
        (3, 5, None, 10)
    }
    assert {(t.settings["learning_rate"], t.settings["outer_learning_rate"]) for t in trials} == {
        (rate, outer) for rate in (0.05, 0.02) for outer in (0.1, 0.2, 0.3)
    }
    assert made.candidates(fedavg) == []


FLIPPED = {"kind": "flipped-labels", "nodes": ["minority-1", "minority-2"], "share": 0.5}
ABSENT = {"kind": "absent", "nodes": ["majority-3"]}


def test_every_table_of_bad_nodes_is_a_cell():
    made = study(setting=[1, 2], method="fedavg", bad=[FLIPPED, ABSENT], seed=[0, 1])
    runs = made.runs()
    assert len(runs) == 2 * 2 * 2
    assert [run.setting_title for run in runs[::2]] == [
        "setting 1, 2 nodes with flipped labels (50%)",
        "setting 1, 1 node absent",
        "setting 2, 2 nodes with flipped labels (50%)",
        "setting 2, 1 node absent",
    ]
    assert len({run.directory for run in runs}) == len(runs)
    assert [run.node_count for run in runs[:4:2]] == [15, 14]
    again = RunConfig.model_validate_json(runs[0].model_dump_json())
    assert again.directory == runs[0].directory
    drawn = [
        draw_problem(run) for run in (*runs[:4:2], study(setting=1, method="fedavg").runs()[0])
    ]
    flipped, absent, plain = (each.data for each in drawn)
    assert (flipped.nodes[0].labels != plain.nodes[0].labels).mean() == 0.5
    assert absent.names == tuple(name for name in plain.names if name != "majority-3")


def test_dishonest_updates_are_those_of_the_engine():
    lie = {"kind": "sign-flipped-updates", "nodes": ["minority-1"]}
    (run,) = study(setting=1, method="fedavg", bad=lie).runs()
    federation = draw_problem(run).problem.federation
    assert isinstance(federation, BadUpdates)
    assert isinstance(
        draw_problem(run.model_copy(update={"bad": None})).problem.federation, SimulatedFederation
    )
    with pytest.raises(InputError, match="bad nodes exist in simulations only"):
        draw_problem(run, engine=lambda config, data: simulate(config, data))


def test_tuning_may_have_a_seed_and_a_cell_of_its_own():
    made = study(
        setting=[2, 1],
        seed=[3, 4],
        method="fedavg",
        tune={"fedavg": {"learning_rate": [0.05, 0.02]}},
        tune_seed=9,
        tune_once=True,
        tune_synchronizations=20,
    )
    trials = [made.candidates(run) for run in made.runs()]
    assert len(trials) == 4
    assert {(t.seed, t.setting, t.synchronizations) for own in trials for t in own} == {(9, 2, 20)}
    assert len({trial.directory for own in trials for trial in own}) == 2
    each = study(
        setting=[2, 1], method="fedavg", tune={"fedavg": {"learning_rate": [0.05]}}, tune_seed=9
    )
    assert [each.candidates(run)[0].setting for run in each.runs()] == [2, 1]


BAD = {
    "bad nodes that are not there": (
        {"bad": {"kind": "absent", "nodes": ["minority-7"]}},
        "there is no node 'minority-7'; did you mean minority-",
    ),
    "an unknown kind of badness": (
        {"bad": {"kind": "lazy", "nodes": ["minority-1"]}},
        "bad: must be 'flipped-labels'",
    ),
    "bad nodes of a partition": (
        {"bad": ABSENT, "partition": "dirichlet", "alpha": 1, "nodes": 5},
        "bad is of no use with a partition",
    ),
    "the same bad nodes twice": ({"bad": [ABSENT, ABSENT]}, "bad lists the same value twice"),
    "a seed of no tuning": ({"tune_seed": 3}, "tune_seed is of no use without a .tune. table"),
    "unknown key": ({"datset": 1}, "unknown key datset; did you mean dataset"),
    "unknown setting": (
        {"settings": {"learning_rat": 1}},
        "did you mean learning_rate",
    ),
    "unknown method": ({"method": "bilevl"}, "method"),
    "unknown method table": ({"settings": {"bilvel": {"cap": 0.5}}}, "did you mean bilevel"),
    "of no use": ({"method": "fedavg", "settings": {"cap": 0.5}}, "of no use here"),
    "wrong method": (
        {"settings": {"fedavg": {"cap": 0.5}}},
        r"settings\.fedavg\.cap is not a parameter",
    ),
    "wrong tune": ({"tune": {"fedavg": {"cap": [0.5]}}}, r"tune\.fedavg\.cap is not a parameter"),
    "number": ({"settings": {"learning_rate": -1}}, "learning_rate must be a positive number"),
    "paper setting": ({"setting": 5}, "1, 2, 3 or 4"),
    "target": ({"target": "both"}, "minority"),
    "budget": ({"synchronizations": 0}, "synchronizations"),
    "seed": ({"seed": -1}, "seed"),
    "seed twice": ({"seed": [1, 1]}, "lists the same value twice"),
    "empty list": ({"method": []}, "empty list"),
    "settings of an absent method": (
        {"method": "fedavg", "settings": {"ditto": {"proximal": 1}}},
        "not among",
    ),
    "tune of an absent method": (
        {"method": "fedavg", "tune": {"ditto": {"proximal": [1]}}},
        "not among",
    ),
    "tune_steps alone": ({"tune_steps": 3}, "of no use without"),
    "tune_synchronizations alone": ({"tune_synchronizations": 9}, "of no use without"),
    "two lengths of trials": (
        {
            "tune_steps": 3,
            "tune_synchronizations": 9,
            "tune": {"bilevel": {"learning_rate": [0.1, 0.2]}},
        },
        "exclude each other",
    ),
    "follow alone": ({"follow_bilevel": True}, "not tuned"),
    "cap below 1/K": ({"settings": {"cap": 0.01}}, "between 1/15"),
    "cap as text": ({"settings": {"cap": "0.5"}}, "cap must be a number"),
    "switch as text": ({"settings": {"warm_start": "no"}}, "true or false"),
    "solver conflict": (
        {"settings": {"bilevel": {"solver": "cg", "adjoint_learning_rate": 1}}},
        "solver 'cg'",
    ),
    "preset": ({"settings": {"preset": "papr"}}, "preset='papr' is unknown; did you mean paper"),
    "no node": ({"minority_nodes": 0, "majority_nodes": 0}, "at least one node is needed"),
    "fewer than no node": ({"minority_nodes": -1}, "minority_nodes"),
    "setting file": ({"setting": "none.toml"}, "no file none.toml with a setting"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_refused_with_the_key_and_what_to_do(name):
    content, message = BAD[name]
    with pytest.raises(fedkin.InputError, match=message):
        study(**content)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(fedkin.InputError, match="there is no file"):
        load_study(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("dataset = [")
    with pytest.raises(fedkin.InputError, match="not valid TOML"):
        load_study(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(fedkin.InputError, match="cannot read"):
        load_study(tmp_path / "bytes.toml")
