from dataclasses import dataclass

import flax.linen as nn
import numpy as np
import pytest

import fedkin
from federations import classification_nodes, regression_nodes
from fedkin.compilation import COMPILED
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.models.linear import Ridge as FedkinRidge


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_two_groups_of_digits(seed):
    """At least 95% of the weight goes to the similar nodes, and the model beats both alternatives."""
    data = sample_federation(load_images("digits"), paper_scenario("digits", 2), "minority", seed)
    accuracy = {}
    for method in ("bilevel", "fedavg", "local"):
        result = fedkin.fit(data.nodes, data.validation, method=method, seed=seed, classes=10)
        accuracy[method] = np.mean(result.predict(data.test[0]) == data.test[1])
        if method == "bilevel":
            assert sum(list(result.weights.values())[:5]) >= 0.95
            assert sum(result.weights.values()) == pytest.approx(1, abs=1e-6)
            assert max(result.weights.values()) <= 1 / 3 + 1e-6
            assert result.stopped.startswith("converged")
            assert result.warnings == ()
    assert accuracy["bilevel"] > max(accuracy["fedavg"], accuracy["local"])


def small_fit(seed=0, **options):
    nodes, validation = classification_nodes((30, 20, 25))
    return fedkin.fit(nodes, validation, seed=seed, steps=3, **options)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    first, second, other = small_fit(3), small_fit(3), small_fit(4)
    np.testing.assert_array_equal(first.theta, second.theta)
    assert first.weights == second.weights
    timeless = [result.history.drop(columns="seconds") for result in (first, second)]
    assert timeless[0].equals(timeless[1])
    assert np.any(first.theta != other.theta)


def test_a_second_call_of_the_same_shape_compiles_nothing():
    small_fit(0)
    known = set(COMPILED)
    small_fit(1)
    assert set(COMPILED) == known


def differs(result, plain):
    return not result.history.validation_loss.equals(plain.history.validation_loss)


def history_has(*columns, lacks=()):
    def check(result, plain):
        return (
            differs(result, plain)
            and set(columns) <= set(result.history)
            and not set(lacks) & set(result.history)
        )

    return check


def is_a_network(result, plain):
    return type(result.model).__name__ == "MLP" and result.theta.size != plain.theta.size


def weighs_all_alike(result, plain):
    return differs(result, plain) and set(result.weights.values()) == {np.float32(1 / 3)}


def asks_nobody(result, plain):
    return result.weights is None and result.cost.bytes_up == 0 < plain.cost.bytes_up


def is_one_of_the_iterates(result, plain):
    rows = [
        row[[f"weight node {number}" for number in (1, 2, 3)]].tolist()
        for _, row in plain.history.iterrows()
    ]
    kept = rows.index(list(result.weights.values()))
    # The iterates are those of before; of the three, seed 0 draws another than the last.
    return not differs(result, plain) and kept < 2 < len(rows)


def starts_training_at_zero(result, plain):
    """The first step is the same; then training from zero takes more rounds than from the last model."""
    rounds, usual = result.history.inner_rounds, plain.history.inner_rounds
    return rounds[0] == usual[0] and (rounds[1:] > usual[1:]).all()


def starts_the_solver_at_the_last_solution(result, plain):
    """The first step is the same; then the solver comes to nearly the same h on another way."""
    norms, usual = (each.history.adjoint_norm.dropna() for each in (result, plain))
    residuals, usual_residuals = (
        each.history.adjoint_residual.dropna() for each in (result, plain)
    )
    return (
        residuals[0] == usual_residuals[0]
        and (residuals[1:] != usual_residuals[1:]).all()
        and (residuals <= 0.01).all()
        and len(residuals) > 1
        and np.allclose(norms, usual, rtol=0.02)
    )


OF_THE_ADAPTIVE_LOOP = {"warm_start", "warm_start_adjoint", "batch_size"}


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        (
            {"preset": "paper", "learning_rate": 0.1, "rounds": 3},
            history_has("adjoint_retries", lacks=["accepted"]),
        ),
        ({"solver": "svrg"}, history_has("adjoint_learning_rate", "accepted")),
        ({"solver": "neumann"}, history_has("adjoint_residual", "accepted")),
        (
            {"outer": "proximal", "outer_learning_rate": 0.1},
            history_has("adjoint_residual", lacks=["accepted", "outer_learning_rate"]),
        ),
        (
            {"outer": "accelerated", "outer_learning_rate": 0.1},
            history_has("adjoint_residual", lacks=["accepted", "outer_learning_rate"]),
        ),
        ({"model": "mlp", "rounds": 3}, is_a_network),
        ({"method": "fedavg"}, weighs_all_alike),
        ({"method": "local"}, asks_nobody),
        ({"keep": "random"}, is_one_of_the_iterates),
        ({"warm_start": False}, starts_training_at_zero),
        ({"warm_start_adjoint": True}, starts_the_solver_at_the_last_solution),
        ({"l2": 0.05}, lambda result, plain: result.model.l2 == 0.05 and differs(result, plain)),
        ({"batch_size": 7}, differs),
        (
            {"outer": "adaptive"},
            history_has("inner_rounds", "adjoint_residual", "accepted", "outer_learning_rate"),
        ),
        ({"period": 5}, history_has("learning_rate", "models", "taken_back", lacks=["accepted"])),
        ({"cap": 0.4}, lambda result, plain: max(result.weights.values()) <= 0.4 + 1e-6),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_every_option_has_its_effect_and_lowers_the_validation_loss(options, shows):
    # Some settings are read by the adaptive loop alone; others, such as batch_size, by training in rounds.
    loop = {"outer": "adaptive"} if set(options) & OF_THE_ADAPTIVE_LOOP else {}
    result, plain = small_fit(**loop, **options), small_fit(**loop)
    assert shows(result, plain)
    probabilities = result.predict_proba(np.zeros((4, 3)))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    assert result.history.validation_loss.min() < np.log(3)  # all classes equally likely


def test_both_algorithms_of_the_paper_can_be_chosen():
    proximal, accelerated = (
        small_fit(outer=outer, outer_learning_rate=0.1) for outer in ("proximal", "accelerated")
    )
    assert differs(proximal, accelerated)
    # Algorithm 2 also trains the model at its aggregate weights.
    assert accelerated.cost.synchronizations > proximal.cost.synchronizations


def test_regression_predicts_numbers():
    nodes, validation = regression_nodes((60, 50, 40), noise=0.1)
    result = fedkin.fit(nodes, validation, model="ridge", test=validation)
    residual = result.predict(validation[0]) - validation[1]
    assert np.mean(residual**2) < 0.5 * np.var(validation[1])
    assert "test_loss" in result.history
    with pytest.raises(fedkin.InputError, match="classification"):
        result.predict_proba(validation[0])


class SmallNetwork(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(nn.tanh(nn.Dense(4)(inputs)))


def test_a_flax_module_is_trained_saved_and_loaded(tmp_path):
    result = small_fit(model=SmallNetwork(), rounds=3)
    path = tmp_path / "result.fedkin"
    result.save(path)
    with pytest.raises(fedkin.InputError, match=r"fedkin\.load\(path, model="):
        fedkin.load(path)
    inputs = np.random.default_rng(0).normal(size=(5, 3))
    loaded = fedkin.load(path, model=SmallNetwork())
    np.testing.assert_array_equal(loaded.predict_proba(inputs), result.predict_proba(inputs))


def test_a_saved_result_comes_back_whole(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (120, 8, 8, 1), np.uint8)
    labels = np.array(["cat", "dog", "eel"])[rng.integers(0, 3, 120)]
    nodes = {"a": (images[:50], labels[:50]), "b": (images[50:90], labels[50:90])}
    result = fedkin.fit(nodes, (images[90:], labels[90:]), model="cnn", steps=1, rounds=1)
    result.save(tmp_path / "result.fedkin")
    loaded = fedkin.load(tmp_path / "result.fedkin")
    np.testing.assert_array_equal(loaded.predict_proba(images), result.predict_proba(images))
    assert list(loaded.predict(images)) == list(result.predict(images))
    assert set(loaded.predict(images)) <= {"cat", "dog", "eel"}
    assert loaded.weights == result.weights
    assert loaded.history.equals(result.history)
    assert (loaded.stopped, loaded.cost, loaded.method) == (result.stopped, result.cost, "bilevel")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "result.fedkin"
    with pytest.raises(fedkin.InputError, match="there is no file"):
        fedkin.load(path)
    small_fit().save(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(fedkin.InputError, match="damaged"):
        fedkin.load(path)
    with pytest.raises(fedkin.InputError, match="cannot write"):
        small_fit().save(tmp_path / "nowhere" / "result.fedkin")


def test_a_diverging_hypergradient_is_reported_and_mended():
    result = small_fit(preset="paper", learning_rate=0.1, rounds=3, adjoint_learning_rate=100.0)
    assert "diverged with γ_h = 100" in result.warnings[0]
    assert result.history.adjoint_retries.iloc[0] > 0
    assert result.history.adjoint_retries.iloc[-1] == 0  # it continues with the smaller step
    assert np.isfinite(list(result.weights.values())).all()


@pytest.mark.parametrize(
    "method",
    [
        fedkin.Bilevel(solver=fedkin.ConjugateGradients(), learning_rate=1000.0),
        fedkin.FedAvg(learning_rate=1000.0),
        fedkin.LocalTraining(learning_rate=1000.0),
    ],
    ids=lambda method: method.name,
)
def test_a_diverging_training_ends_with_an_error_that_names_gamma(method):
    nodes, validation = regression_nodes((60, 50, 40))
    with pytest.raises(fedkin.DivergedError, match=r"learning rate γ = 1000 is too large"):
        fedkin.fit(nodes, validation, model="ridge", method=method)


def test_the_single_loop_takes_diverging_steps_back():
    nodes, validation = regression_nodes((60, 50, 40))
    result = fedkin.fit(nodes, validation, model="ridge", learning_rate=1000.0, steps=20)
    assert "continues from there with the step size 5e+02" in result.warnings[0]
    losses = result.history.validation_loss
    assert np.isfinite(result.theta).all()
    assert result.history.taken_back.sum() > 5
    # In the end the step size is small enough to train with.
    assert losses.iloc[-1] < 0.9 * losses[0]


def test_a_run_that_ends_on_a_diverged_step_returns_the_best_model():
    nodes, validation = regression_nodes((60, 50, 40))
    result = fedkin.fit(nodes, validation, model="ridge", learning_rate=1000.0, steps=5)
    assert result.history.taken_back.iloc[-1]
    # No step has led to a model, so the initial one is left.
    initial = result.history.outer_loss[0]
    np.testing.assert_allclose(result.history.validation_loss, initial, rtol=1e-5)
    assert np.isfinite(result.theta).all()


def changed(node=None, validation=None, **options):
    nodes, own = classification_nodes((30, 20, 25))
    nodes = dict(zip("abc", nodes, strict=True))
    if node is not None:
        nodes["b"] = node(*nodes["b"])
    return nodes, own if validation is None else validation(*own), options


def with_value(value):
    def change(inputs, labels):
        inputs = inputs.copy()
        inputs[3, 1] = value
        return inputs, labels

    return change


BAD = {
    "nan": (
        changed(with_value(np.nan)),
        r"node 'b' has NaN or infinite values in 1 of 20 points \(first: point 3",
    ),
    "infinite": (changed(validation=with_value(np.inf)), "the validation data has NaN or infinite"),
    "overflow": (changed(with_value(1e300)), "node 'b' has NaN or infinite"),
    "label": (
        changed(lambda x, y: (x, y + 7), classes=3),
        r"node 'b': label \d+ is out of range; the classes are 0, 1, 2",
    ),
    "negative label": (changed(lambda x, y: (x, y - 5), classes=3), r"label -\d is out of range"),
    "fraction": (changed(lambda x, y: (x, y + 0.5)), "labels are fractions"),
    "features": (
        changed(lambda x, y: (x[:, :2], y)),
        r"node 'b' has points of shape \(2,\) but node 'a' has \(3,\)",
    ),
    "validation features": (
        changed(validation=lambda x, y: (x[:, :2], y)),
        "the validation data has points of shape",
    ),
    "empty": (changed(lambda x, y: (x[:0], y[:0])), "node 'b' is empty"),
    "empty validation": (
        changed(validation=lambda x, y: (x[:0], y[:0])),
        "the validation data is empty",
    ),
    "lengths": (changed(lambda x, y: (x, y[1:])), "20 points but 19 labels"),
    "text": (changed(lambda x, y: (x.astype(str), y)), "not numbers"),
    "no pair": (changed(lambda x, y: x), r"expected a pair \(X, y\)"),
    "one axis": (changed(lambda x, y: (x[:, 0], y)), "rows of features"),
    "bytes": (changed(lambda x, y: (x.astype(np.uint8), y)), "some points are bytes"),
    "cap": (changed(cap=0.3), r"cap on a node's weight is 0\.3.*between 1/3"),
    "method": (changed(method="newton"), "method='newton' is unknown; choose one of bilevel"),
    "model": (changed(model="boosting"), "model='boosting' is unknown; choose one of logistic"),
    "solver": (changed(solver="lu"), "solver='lu' is unknown"),
    "rate": (changed(learning_rate=-1.0), "learning_rate must be a positive number"),
    "period": (changed(period=0), "period must be a whole number"),
    "unused": (changed(method="fedavg", cap=0.5), "cap is not a setting of the method 'fedavg'"),
    "unused damping": (
        changed(solver="svrg", damping=1.0),
        "damping is not a setting of the solver 'svrg'",
    ),
    "unused eta": (changed(outer_learning_rate=1.0), "chosen by the outer loop 'single' itself"),
    "steps": (changed(steps=0), "steps must be a whole number"),
    "l2": (changed(l2=0.0), "needs l2 above 0"),
    "cnn on rows": (changed(model="cnn"), "needs images"),
    "keep": (changed(keep="first"), "keep='first' is unknown"),
    "task": (changed(model="ridge", task="classification"), "is for regression"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_work_with_a_message_of_its_own(name):
    (nodes, validation, options), message = BAD[name]
    known = set(COMPILED)
    with pytest.raises(fedkin.InputError, match=message):
        fedkin.fit(nodes, validation, **options)
    assert set(COMPILED) == known


def test_a_single_class_is_refused():
    nodes, validation = classification_nodes((30, 20))
    nodes = [(x, np.zeros_like(y)) for x, y in nodes]
    with pytest.raises(fedkin.InputError, match="single class"):
        fedkin.fit(nodes, (validation[0], np.zeros_like(validation[1])))


def test_no_nodes_are_refused():
    _, validation = classification_nodes((30,))
    with pytest.raises(fedkin.InputError, match="no nodes"):
        fedkin.fit([], validation)


def test_a_model_derived_from_fedkins_own_is_not_saved_as_fedkins(tmp_path):
    @dataclass(frozen=True)
    class Ridge(FedkinRidge):
        def prepare(self, inputs):
            return super().prepare(-inputs)

    x = np.linspace(-1, 1, 20)[:, None]
    result = fedkin.fit([(x, x[:, 0])] * 2, (x, x[:, 0]), model=Ridge(), method="fedavg", steps=1)
    result.save(tmp_path / "own.fedkin")
    with pytest.raises(fedkin.InputError, match="which fedkin cannot build by itself"):
        fedkin.load(tmp_path / "own.fedkin")
    again = fedkin.load(tmp_path / "own.fedkin", model=Ridge())
    np.testing.assert_array_equal(again.predict(x), result.predict(x))
