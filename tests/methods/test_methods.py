"""Methods and solvers as objects, by name, with settings; and those of other packages."""

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from operator import attrgetter
from typing import ClassVar

import jax
import numpy as np
import pytest

import fedkin
from federations import classification_nodes
from fedkin import registry
from fedkin.errors import InputError
from fedkin.federation.task import Task
from fedkin.methods.bilevel.hypergradient import SOLVERS, AdjointSolver
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.registry import METHODS, PAPER_METHODS, known_tasks, make_method, register
from fedkin.models.named import MODELS
from fedkin.registry import Registry
from fedkin.training import problem as problem_module
from fedkin.training.fit import fit

NODES, VALIDATION = classification_nodes((30, 20, 25))


class ReachedError(Exception):
    pass


@pytest.fixture
def algorithm_of(monkeypatch):
    """Return the algorithm that `fit` would run; nothing is run."""
    found = []

    def run(algorithm, *arguments, **others):
        found.append(algorithm)
        raise ReachedError

    monkeypatch.setattr(problem_module, "run", run)

    def of(**options):
        with pytest.raises(ReachedError):
            fit(NODES, VALIDATION, **options)
        return found[-1]

    return of


# Objects and keywords

EQUAL = [
    (
        fedkin.Bilevel(solver=fedkin.ConjugateGradients(damping=1.0)),
        {"solver": "cg", "damping": 1.0},
    ),
    (
        fedkin.Bilevel.paper(solver=fedkin.LocalSvrgSolver(learning_rate=0.01, rounds=2), rounds=3),
        {"preset": "paper", "adjoint_learning_rate": 0.01, "solver_iterations": 2, "rounds": 3},
    ),
    (
        fedkin.Bilevel(
            solver=fedkin.NeumannSeries(step=0.1, terms=3, damping=0.2),
            outer="proximal",
            outer_learning_rate=0.1,
            cap=0.4,
        ),
        {
            "solver": "neumann",
            "adjoint_learning_rate": 0.1,
            "solver_iterations": 3,
            "damping": 0.2,
            "outer": "proximal",
            "outer_learning_rate": 0.1,
            "cap": 0.4,
        },
    ),
    (fedkin.FedAvg(period=5, averaging=True), {"method": "fedavg", "period": 5, "averaging": True}),
    (fedkin.LocalTraining(rounds=2), {"method": "local", "rounds": 2}),
    (
        fedkin.Ditto(proximal=0.2, personal_steps=3, rounds=2),
        {"method": "ditto", "proximal": 0.2, "personal_steps": 3, "rounds": 2},
    ),
    (fedkin.PFedMe(proximal=3, rounds=2), {"method": "pfedme", "proximal": 3, "rounds": 2}),
]


@pytest.mark.parametrize(("method", "keywords"), EQUAL, ids=lambda each: type(each).__name__)
def test_an_object_and_keywords_give_the_same_bits(method, keywords):
    results = [
        fit(NODES, VALIDATION, steps=2, seed=3, **options)
        for options in ({"method": method}, keywords)
    ]
    np.testing.assert_array_equal(*(result.theta for result in results))
    assert results[0].weights == results[1].weights
    histories = [result.history.drop(columns="seconds") for result in results]
    assert histories[0].equals(histories[1])
    assert make_method(keywords.get("method", "bilevel"), _settings(keywords)) == method
    # It is not what comes out without any setting.
    plain = fit(NODES, VALIDATION, steps=2, seed=3, method=method.name)
    assert not plain.history.drop(columns="seconds").equals(histories[0])


def _settings(keywords):
    return {name: value for name, value in keywords.items() if name != "method"}


ADAPTIVE = {"outer": "adaptive"}

REACHED = {
    "preset": ({"preset": "paper"}, lambda a: type(a).__name__, "ProximalBilevel"),
    "learning_rate": (
        {**ADAPTIVE, "learning_rate": 0.07},
        lambda a: a.differentiation.inner.learning_rate,
        0.07,
    ),
    "period": ({**ADAPTIVE, "period": 7}, lambda a: a.differentiation.inner.period, 7),
    "rounds": ({**ADAPTIVE, "rounds": 9}, lambda a: a.differentiation.inner.rounds, 9),
    "refresh_probability": (
        {**ADAPTIVE, "refresh_probability": 0.3},
        lambda a: a.differentiation.inner.refresh_probability,
        0.3,
    ),
    "averaging": (
        {**ADAPTIVE, "averaging": True},
        lambda a: a.differentiation.inner.result,
        "average",
    ),
    "cap": ({"cap": 0.45}, lambda a: a.cap, 0.45),
    "solver": (
        {**ADAPTIVE, "solver": "neumann"},
        lambda a: a.differentiation.solver.name,
        "neumann",
    ),
    "damping": ({**ADAPTIVE, "damping": 0.3}, lambda a: a.differentiation.solver.damping, 0.3),
    "solver_iterations": (
        {**ADAPTIVE, "solver_iterations": 4},
        lambda a: a.differentiation.solver.iterations,
        4,
    ),
    "adjoint_learning_rate": (
        {"solver": "svrg", "adjoint_learning_rate": 0.2},
        lambda a: a.differentiation.solver.training.learning_rate,
        0.2,
    ),
    "outer": ({"outer": "accelerated"}, lambda a: type(a).__name__, "AcceleratedBilevel"),
    "outer_learning_rate": (
        {"outer": "proximal", "outer_learning_rate": 0.5},
        lambda a: a.outer_learning_rate,
        0.5,
    ),
    "restarts": ({"model": "mlp", "restarts": 1}, lambda a: a.restarts, 1),
    "warm_start": (
        {**ADAPTIVE, "warm_start": False},
        lambda a: a.differentiation.warm_start,
        False,
    ),
    "warm_start_adjoint": (
        {**ADAPTIVE, "warm_start_adjoint": True},
        lambda a: a.differentiation.warm_start_adjoint,
        True,
    ),
    "proximal": ({"method": "ditto", "proximal": 0.2}, lambda a: a.proximal, 0.2),
    "personal_steps": ({"method": "ditto", "personal_steps": 4}, lambda a: a.personal_steps, 4),
}


@pytest.mark.parametrize("name", REACHED)
def test_every_keyword_reaches_the_algorithm(name, algorithm_of):
    options, look, expected = REACHED[name]
    assert look(algorithm_of(**options)) == expected
    without = {key: value for key, value in options.items() if key != name}
    assert look(algorithm_of(**without)) != expected


IN_OTHER_LOOPS = {
    "cap of networks": ({"model": "mlp", "cap": 0.45}, "cap", 0.45),
    "cap with a solver": ({"solver": "cg", "cap": 0.45}, "differentiation.cap", 0.45),
    "learning_rate": ({"model": "mlp", "learning_rate": 0.07}, "learning_rate", 0.07),
    "period": ({"model": "mlp", "period": 7}, "period", 7),
    "refresh_probability": (
        {"model": "mlp", "refresh_probability": 0.3},
        "refresh_probability",
        0.3,
    ),
}


@pytest.mark.parametrize("name", IN_OTHER_LOOPS)
def test_what_several_loops_read_reaches_each(name, algorithm_of):
    options, place, expected = IN_OTHER_LOOPS[name]
    look = attrgetter(place)
    assert look(algorithm_of(**options)) == expected
    without = dict(list(options.items())[:-1])
    assert look(algorithm_of(**without)) != expected


LOOPS = [
    ({}, "NewtonBilevel"),
    ({"cap": 0.45}, "NewtonBilevel"),
    ({"model": "mlp"}, "SingleLoop"),
    *(
        ({name: value}, "SingleLoop")
        for name, value in (
            ("learning_rate", 0.1),
            ("period", 5),
            ("refresh_probability", 0.1),
            ("restarts", 2),
        )
    ),
    ({"restarts": 0}, "NewtonBilevel"),
    *(
        ({name: value}, "AdaptiveBilevel")
        for name, value in (
            ("rounds", 5),
            ("averaging", False),
            ("solver", "cg"),
            ("damping", 0.1),
            ("warm_start", True),
            ("warm_start_adjoint", False),
        )
    ),
    ({"model": "mlp", "rounds": 5}, "AdaptiveBilevel"),
    ({"outer": "proximal"}, "ProximalBilevel"),
]


@pytest.mark.parametrize(("options", "loop"), LOOPS, ids=str)
def test_the_loop_follows_from_the_settings_given(options, loop, algorithm_of):
    assert type(algorithm_of(**options)).__name__ == loop


def test_no_keyword_is_forgotten():
    about_the_problem = {
        *("nodes", "validation", "model", "method", "seed", "test", "classes", "task", "l2"),
        *("batch_size", "steps", "synchronizations", "ask_all", "keep", "on_step", "on_event"),
        *("schedule", "epsilon", "further", "minimum_rows", "prior", "refit", "recalibrate"),
    }
    assert set(inspect.signature(fit).parameters) - about_the_problem == set(REACHED)
    of_methods = {name for each in PAPER_METHODS for name in METHODS.get(each).setting_names()}
    # Of the object alone; `prior` of `fit` is a name that becomes weights, and `own_cap` is for `fit_all`.
    assert of_methods - {"prior", "prior_strength", "tolerance", "own_cap"} == set(REACHED)


def test_numbers_of_numpy_are_plain_numbers():
    method = make_method(
        "bilevel",
        {
            "learning_rate": np.float32(0.5),
            "period": np.int64(7),
            "cap": np.float64(0.5),
            "warm_start": np.bool_(False),
            "damping": np.float32(0.25),
            "solver_iterations": np.int32(3),
        },
    )
    assert method == fedkin.Bilevel(
        learning_rate=0.5,
        period=7,
        cap=0.5,
        warm_start=False,
        solver=fedkin.ConjugateGradients(damping=0.25, iterations=3),
    )
    for value, kind in (
        (method.learning_rate, float),
        (method.period, int),
        (method.cap, float),
        (method.warm_start, bool),
        (method.solver.damping, float),
        (method.solver.iterations, int),
    ):
        assert type(value) is kind
    # A whole number may stand for a real one, not the other way round; a switch is no number.
    assert type(make_method("bilevel", {"cap": 1}).cap) is float
    result = fit(NODES, VALIDATION, seed=np.int64(3), steps=np.int32(1), rounds=np.int64(2))
    assert len(result.history) == 1


def test_presets():
    assert fedkin.Bilevel.paper(cap=0.5) == fedkin.Bilevel(preset="paper", cap=0.5)
    assert fedkin.Bilevel.automatic() == fedkin.Bilevel()
    assert fedkin.Bilevel.paper(damping=1.0, solver="cg") == fedkin.Bilevel(
        preset="paper", solver=fedkin.ConjugateGradients(damping=1.0)
    )
    paper, automatic = fedkin.Bilevel.paper(), fedkin.Bilevel.automatic()
    assert (paper.chosen_outer, automatic.chosen_outer) == ("proximal", "single")
    assert (paper.chosen_solver.name, automatic.chosen_solver.name) == ("svrg", "cg")
    assert (paper.asks_all, automatic.asks_all) == (True, False)
    assert fedkin.Ditto.paper().default_steps == 20
    with pytest.raises(InputError, match="capp is not a setting of the method 'bilevel'; did you"):
        fedkin.Bilevel.paper(capp=0.5)


REFUSED = {
    "misspelled": (
        lambda: make_method("fedavg", {"learning_rat": 0.1}),
        "learning_rat is not a setting of the method 'fedavg'; did you mean learning_rate",
    ),
    "another method's": (
        lambda: make_method("ditto", {"cap": 0.5}),
        "cap is not a setting of the method 'ditto'; choose one of preset, learning_rate",
    ),
    "another solver's": (
        lambda: make_method("bilevel", {"solver": "cg", "adjoint_learning_rate": 0.1}),
        "adjoint_learning_rate is not a setting of the solver 'cg': leave it out",
    ),
    "of the preset's solver": (
        lambda: make_method("bilevel", {"preset": "paper", "damping": 0.1}),
        "damping is not a setting of the solver 'svrg'",
    ),
    "beside an object": (
        lambda: make_method(fedkin.Bilevel(), {"cap": 0.5}),
        r"cap is a setting of the method: give it to the object, Bilevel\(cap=…\)",
    ),
    "beside an object in fit": (
        lambda: fit(NODES, VALIDATION, method=fedkin.FedAvg(), period=5),
        r"period is a setting of the method: give it to the object, FedAvg\(period=…\)",
    ),
    "beside a solver object": (
        lambda: fit(NODES, VALIDATION, solver=fedkin.ConjugateGradients(), damping=1.0),
        "damping is a setting of the solver: give it to the solver object",
    ),
    "no method": (
        lambda: make_method(42),  # pyright: ignore
        r"method must be a name \(bilevel, .*\) or an object such as",
    ),
    "a class": (
        lambda: make_method(fedkin.Bilevel),  # pyright: ignore
        "or an object such as",
    ),
    "no solver": (
        lambda: fedkin.Bilevel(solver=42),  # pyright: ignore
        r"solver must be the name of a solver \(cg, svrg, neumann.*\) or a solver such as",
    ),
    "unknown solver": (lambda: fedkin.Bilevel(solver="newman"), "did you mean neumann"),  # pyright: ignore
    "unknown preset": (lambda: fedkin.FedAvg(preset="papr"), "preset='papr' is unknown; did you"),  # pyright: ignore
    "unknown outer": (lambda: fedkin.Bilevel(outer="fast"), "outer='fast' is unknown; choose one"),  # pyright: ignore
    "a switch for a number": (lambda: fedkin.FedAvg(period=True), "period must be a whole number"),
    "a number for a switch": (lambda: fedkin.FedAvg(averaging=1), "averaging must be true or"),  # pyright: ignore
    "zero": (lambda: fedkin.FedAvg(learning_rate=0), "learning_rate must be a positive number"),
    "infinite": (lambda: fedkin.FedAvg(learning_rate=np.inf), "must be a positive number"),
    "below zero": (lambda: fedkin.ConjugateGradients(damping=-1), "zero or a positive number"),
    "cap": (lambda: fedkin.Bilevel(cap=1.5), "cap must be a number above 0 and at most 1"),
    "a solver in the single loop": (
        lambda: fedkin.Bilevel(outer="single", solver="cg"),  # pyright: ignore
        "solver changes nothing with outer='single'",
    ),
    "restarts in another loop": (
        lambda: fedkin.Bilevel(rounds=3, restarts=2),
        "restarts is a setting of outer='single', not of 'adaptive'",
    ),
    "warm start without effect": (
        lambda: fedkin.Bilevel(solver="neumann", warm_start_adjoint=True),  # pyright: ignore
        "warm_start_adjoint changes nothing with the solver 'neumann'",
    ),
    "warm start without effect in fit": (
        lambda: fit(NODES, VALIDATION, solver="neumann", warm_start_adjoint=True),
        "leave it out, or choose the solver 'cg' or 'svrg'",
    ),
    "no epsilon": (lambda: fedkin.TheoryBilevel(), "TheoryBilevel needs epsilon"),  # pyright: ignore
    "theory with an object": (
        lambda: fit(NODES, VALIDATION, method=fedkin.Bilevel(), schedule="theory", epsilon=0.1),
        r"give method=TheoryBilevel\(epsilon=…\)",
    ),
    "theory with another method": (
        lambda: fit(NODES, VALIDATION, method="fedavg", schedule="theory", epsilon=0.1),
        "schedule='theory' is for the method 'bilevel', not 'fedavg'",
    ),
    "a setting of no method": (
        lambda: fit(NODES, VALIDATION, method="fedavg", strength=1),
        "strength is not a setting of the method 'fedavg'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        make()


def test_warm_starts_that_have_an_effect_are_allowed():
    for solver in ("cg", "svrg"):
        assert make_method("bilevel", {"solver": solver, "warm_start_adjoint": True})
    assert make_method("bilevel", {"solver": "neumann", "warm_start_adjoint": False})


# Registries


@pytest.fixture
def own_registries(monkeypatch):
    """What a test registers is forgotten after it."""
    for each in (METHODS, SOLVERS, MODELS):
        monkeypatch.setattr(each, "_things", dict(each._things))
    declared = {}
    monkeypatch.setattr(registry, "_declared", lambda group: declared.get(group, {}))
    return declared


@dataclass(frozen=True, kw_only=True)
class Averaged(fedkin.FedAvg):
    """A method of another package."""

    name: ClassVar[str] = "averaged"
    title: ClassVar[str] = "Averaged"

    def prepare(self, federation, center, key):
        algorithm, cost = super().prepare(federation, center, key)
        return FedAvgAlgorithm(algorithm.training), cost


@dataclass(frozen=True, kw_only=True)
class Identity(AdjointSolver):
    """A solver of another package: conjugate gradients of one iteration."""

    name: ClassVar[str] = "identity"
    shorthand: ClassVar[dict[str, str]] = {"strength": "strength"}
    strength: float = 1.0

    def __call__(self, *arguments, **others):
        solver = fedkin.ConjugateGradients(damping=self.strength, iterations=1)
        return solver(*arguments, **others)


def test_all_methods_and_those_of_the_paper_are_two_lists(own_registries):
    assert PAPER_METHODS == ("bilevel", "fedavg", "local", "ditto", "pfedme")
    assert set(PAPER_METHODS) <= set(METHODS.names())
    register(Averaged)
    assert METHODS.names()[-1] == "averaged"
    assert "averaged" not in PAPER_METHODS
    assert Averaged in METHODS.all()
    assert make_method("averaged", {"period": 5}) == Averaged(period=5)


def test_a_registered_method_runs(own_registries):
    register(Averaged)
    result = fit(NODES, VALIDATION, method="averaged", steps=1, rounds=2)
    same = fit(NODES, VALIDATION, method="fedavg", steps=1, rounds=2)
    assert result.method == "averaged"
    np.testing.assert_array_equal(result.theta, same.theta)


def test_two_methods_of_one_name_are_refused(own_registries):
    @dataclass(frozen=True, kw_only=True)
    class Another(fedkin.FedAvg):
        name: ClassVar[str] = "fedavg"

    with pytest.raises(InputError, match="two methods called 'fedavg': rename one"):
        register(Another)
    assert METHODS.get("fedavg") is fedkin.FedAvg
    assert register(fedkin.FedAvg) is fedkin.FedAvg  # again is no harm
    with pytest.raises(InputError, match="two solvers called 'cg'"):

        @fedkin.register_solver
        class Cg(Identity):
            name: ClassVar[str] = "cg"

    with pytest.raises(InputError, match="two models called 'mlp'"):
        fedkin.register_model("mlp", lambda classes, shape: None)
    for other in (int, 42, fedkin.FedAvg()):
        with pytest.raises(InputError, match=r"a class that derives from fedkin\.Method"):
            register(other)  # pyright: ignore


def test_names_of_entry_points(own_registries):
    own_registries["fedkin.methods"] = {
        "averaged": EntryPoint("averaged", f"{__name__}:Averaged", "fedkin.methods")
    }
    own_registries["fedkin.solvers"] = {
        "identity": EntryPoint("identity", f"{__name__}:Identity", "fedkin.solvers")
    }
    assert METHODS.names()[-1] == "averaged"
    assert METHODS.get("averaged") is Averaged
    # The solver's settings stand beside the method's own.
    assert "strength" in fedkin.Bilevel.setting_names()
    assert make_method("bilevel", {"solver": "identity", "strength": 2.0}) == fedkin.Bilevel(
        solver=Identity(strength=2.0)
    )
    with pytest.raises(InputError, match="strength is not a setting of the solver 'cg'"):
        make_method("bilevel", {"strength": 2.0})


def test_names_of_places():
    assert type(make_method(f"{__name__}:Averaged")) is Averaged
    assert fedkin.Bilevel(solver=f"{__name__}:Identity").solver == Identity()  # pyright: ignore
    made = make_method("bilevel", {"solver": f"{__name__}:Identity", "strength": 3.0})
    assert made.solver == Identity(strength=3.0)
    assert made.typed_settings({"solver": f"{__name__}:Identity", "strength": 3}) == {
        "solver": f"{__name__}:Identity",
        "strength": 3.0,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:Thing", r"the module nowhere\.at_all cannot be imported .*PYTHONPATH"),
        ("fedkin.methods.fedavg:FedAvgg", r"fedkin\.methods\.fedavg has no FedAvgg"),
        ("fedkin.errors:InputError", "is not a class that derives from fedkin.Method"),
        ("fedavgg", "method='fedavgg' is unknown; did you mean fedavg"),
        ("newton", "method='newton' is unknown; choose one of bilevel, fedavg"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(InputError, match=message):
        make_method(name)


def test_the_entry_points_of_installed_packages_are_looked_up(monkeypatch):
    looked_up = []

    def entry_points(*, group):
        looked_up.append(group)
        return [EntryPoint("text", "textwrap:dedent", group)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    things = Registry("thing", "fedkin.things")
    try:
        assert things.names() == ("text",)
        assert things.get("text").__name__ == "dedent"
        assert looked_up == ["fedkin.things"]
    finally:
        registry._declared.cache_clear()


def test_tasks_have_one_name_each_and_methods_list_all_they_ask_for(monkeypatch):
    """Whoever restores a checkpoint or guards a node relies on these lists."""
    asked = set()
    cases = [(name, {"rounds": 2}) for name in PAPER_METHODS]
    cases += [("bilevel", {}), ("bilevel", {"period": 2})]  # the single loops
    for name, settings in cases:
        method = make_method(name, settings)
        problem = _problem()
        for federation in (problem.federation, problem.center.alone):
            exchange = federation.exchange

            def spy(*, key, exchange=exchange, **requests):
                asked.update(request.task for request in requests.values())
                return exchange(key=key, **requests)

            monkeypatch.setattr(federation, "exchange", spy)
        asked.clear()
        problem.train(method, budget=problem_module.Budget(steps=2))
        assert asked <= set(method.tasks), name
        assert asked
    tasks = [task for method in METHODS.all() for task in method.tasks]
    assert len(known_tasks()) == len(set(tasks))


def _problem():
    engine = problem_module.simulation(dict(zip("abc", NODES, strict=True)), batch_size=10, seed=0)
    return problem_module.Problem.build(engine, VALIDATION, classes=np.arange(3), batch_size=10)


def test_preparing_says_what_it_cost():
    problem = _problem()
    key = jax.random.key(0)
    for settings, synchronizations in (
        ({"solver": "cg"}, 1),
        ({"solver": "cg", "learning_rate": 0.1}, 0),
        # The single loop asks for the curvature in its exchanges.
        ({}, 0),
        ({"period": 20}, 0),
    ):
        method = make_method("bilevel", settings)
        _, cost = method.prepare(problem.federation, problem.center, key)
        assert cost.synchronizations == synchronizations, settings


def test_a_task_of_a_known_name_is_refused(own_registries):
    own = Task("slope", lambda *arguments: ({}, {}), number_replies=("slope",))

    class Clashing(fedkin.Method):
        name, title, color, tasks = "clashing", "Clashing", "#000000", (own,)

    with pytest.raises(InputError, match="clashing and bilevel both have a task called 'slope'"):
        fedkin.register(Clashing)


def test_a_package_that_cannot_be_loaded_is_named_and_harms_nobody_else(monkeypatch, caplog):
    point = EntryPoint("broken", "no_such_package:Broken", "fedkin.methods")
    monkeypatch.setattr("fedkin.registry._declared", lambda group: {"broken": point})
    registry = Registry("method", "fedkin.methods")
    registry.add("bilevel", fedkin.Bilevel)
    assert registry.all() == [fedkin.Bilevel]
    assert "no_such_package" in caplog.text
    with pytest.raises(InputError, match="of the package no_such_package cannot be loaded"):
        registry.get("broken")


def test_a_solver_that_knows_its_training_keeps_it():
    training = LocalSvrg(1e-4, period=1, rounds=1)
    solver = fedkin.LocalSvrgSolver(training=training)
    assert solver.prepare(None, LocalSvrg(0.1), "paper").training is training
