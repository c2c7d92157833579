"""A center whose rows are elsewhere answers like one that has them, in few exchanges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.errors import DivergedError, InputError
from fedkin.federation.base import Cost, Reply
from fedkin.federation.center import Center
from fedkin.federation.distant_center import DistantCenter
from fedkin.federation.questions import QUESTIONS, HeldOut
from fedkin.methods.local_svrg.alone import train_alone
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.objective import Objective
from fedkin.numerics.scores import classification_scores, regression_scores
from fedkin.types import Points

FEATURES = 3


class NodeAtHand:
    """Answers questions in this process, and counts exchanges."""

    def __init__(self, held_out):
        self.held_out, self.exchanges = held_out, 0

    def exchange(self, *, key, question):
        assert QUESTIONS[question.task.name] is question.task
        self.exchanges += 1
        rows = []
        for place in range(question.models or 1):
            message = {
                name: value[place] if np.ndim(value) == 2 else value
                for name, value in question.message.items()
            }
            rows.append(question.task.function(self.held_out, message, key, **question.options))
        found = {name: jnp.stack([jnp.asarray(row[name]) for row in rows]) for name in rows[0]}
        if not question.task.vector_replies:
            found = {name: array[:, None] for name, array in found.items()}  # one node
        if question.models is None:
            found = {name: array[0] for name, array in found.items()}
        return Reply({"question": found}, Cost())


def points(task, rows, seed):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(rows, FEATURES)).astype(np.float32)
    score = inputs @ np.arange(1.0, FEATURES + 1)
    labels = (score > 0).astype(np.int32) if task == "classification" else score.astype(np.float32)
    return Points(inputs, labels)


@pytest.fixture(params=["classification", "regression"])
def both(request):
    """A center with its rows at hand, the same with rows elsewhere, and the node that has them."""
    model = Logistic(classes=2) if request.param == "classification" else Ridge(l2=0.1)
    validation, test = points(request.param, 23, 0), points(request.param, 11, 1)
    objective = Objective.create(model, validation.inputs[:2])
    center = Center(objective, *validation, batch_size=10, seed=0)
    node = NodeAtHand(HeldOut(center, test))
    distant = DistantCenter(objective, len(validation.labels), len(test.labels))
    return center, distant.connected(alone=None, node=node), node, test


def model(center, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=center.objective.size), jnp.float32)


def test_one_exchange_tells_everything_about_a_model(both):
    center, distant, node, test = both
    theta = model(center, 0)
    loss, gradient = distant.loss_and_gradient(theta)
    expected_loss, expected = center.loss_and_gradient(theta)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    for found, known in (
        (distant.validate(theta), center.validate(theta)),
        (distant.score(theta, *distant.test), center.score(theta, *test)),
    ):
        assert found.loss == pytest.approx(known.loss, rel=1e-6)
        assert found.accuracy == pytest.approx(known.accuracy)
    assert node.exchanges == 1
    assert (distant.points, len(distant.test.labels)) == (23, 11)


def test_methods_that_need_no_gradient_get_scores_only(both):
    center, distant, node, _ = both
    distant.validate(model(center, 0))
    distant.score(model(center, 0), *distant.test)
    assert node.exchanges == 1
    distant.loss_and_gradient(model(center, 0))
    assert node.exchanges == 2
    distant.validate(model(center, 1))  # from now on the gradient comes along
    distant.loss_and_gradient(model(center, 1))
    assert node.exchanges == 3


def test_a_line_search_is_one_exchange_and_knows_where_it_ends(both):
    center, distant, node, _ = both
    theta = np.asarray(model(center, 0), np.float64)
    direction = -np.asarray(center.loss_and_gradient(model(center, 0))[1], np.float64)
    found = distant.search_line(theta, direction, 0.01, 4.0)
    expected = center.search_line(theta, direction, 0.01, 4.0)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    # As the method computes it, in double precision.
    reached = jnp.asarray(theta + found.share * direction, jnp.float32)
    loss, gradient = distant.loss_and_gradient(reached)
    assert loss == pytest.approx(center.loss_and_gradient(reached)[0], rel=1e-5)
    np.testing.assert_allclose(gradient, center.loss_and_gradient(reached)[1], rtol=1e-4, atol=1e-5)
    assert node.exchanges == 1
    with pytest.raises(DivergedError):
        distant.search_line(theta * np.nan, direction, 0.0, 1.0)


def test_the_other_questions(both):
    center, distant, node, _ = both
    models = [model(center, seed) for seed in range(3)]
    losses = distant.losses([*models, models[0] * jnp.nan])
    np.testing.assert_allclose(losses[:3], center.losses(models), rtol=1e-6)
    assert np.isnan(losses[3])
    assert node.exchanges == 1
    target = center.loss_and_gradient(models[0])[1]
    found, expected = (
        each.solve(models[0], target, damping=0.1, iterations=4) for each in (distant, center)
    )
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        distant.hessian(models[0]), center.hessian(models[0]), rtol=1e-5, atol=1e-6
    )
    assert node.exchanges == 3


def test_final_scores_are_those_of_a_table(both):
    center, distant, _, test = both
    theta = model(center, 2)
    found = distant.final_scores(theta)
    outputs = np.asarray(center.outputs(theta, test.inputs), np.float64)
    if center.objective.model.task == "regression":
        expected = regression_scores(test.labels, outputs)
    else:
        exponentials = np.exp(outputs)
        chances = exponentials / exponentials.sum(axis=1, keepdims=True)
        expected = classification_scores(test.labels, chances)
    assert found["test"] == pytest.approx(expected, rel=1e-5)
    assert set(found) == {"validation", "test"}


def test_models_are_compared_in_one_exchange(both):
    center, distant, node, _ = both
    reference, *others = (model(center, seed) for seed in range(4))
    loss, compared = distant.compare(reference, others)
    expected, known = center.compare(reference, others)
    assert loss == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(compared, known, rtol=1e-5)
    assert node.exchanges == 1
    assert [own.loss for own in known] == pytest.approx(
        [center.validate(theta).loss for theta in others], rel=1e-6
    )
    one = center.compare(reference, [reference])[1][0]
    assert (one.loss, one.error) == (pytest.approx(expected), 0)


def test_a_model_that_has_diverged_is_not_asked_about(both):
    center, distant, node, _ = both
    nothing = model(center, 0) * jnp.nan
    assert np.isnan(distant.loss_and_gradient(nothing)[0])
    assert np.isnan(distant.validate(nothing).loss)
    assert node.exchanges == 0


def test_what_needs_the_rows_themselves_says_so(both):
    _, distant, _, _ = both
    assert distant.rows is None
    with pytest.raises(InputError, match="prior"):
        distant.loss_unit  # noqa: B018


def test_a_node_that_is_asked_again_trains_no_further():
    """The first answer was lost; a question that continues must not continue from its own end."""
    own = points("classification", 30, 2)
    objective = Objective.create(Logistic(classes=2), own.inputs[:2])
    message = {
        "point": jnp.zeros(objective.size),
        "learning_rate": 0.1,
        "refresh_probability": 0.3,
        "strong_convexity": 0.0,
        "tolerance": 0.0,
    }

    def ask(held_out, number, start):
        key, options = jax.random.key(number), {"steps": 3, "rounds": 2, "result": "last"}
        return train_alone(held_out, message, key, start=start, **options)["point"]

    def nodes():
        return HeldOut(Center(objective, *own, batch_size=10, seed=0), None)

    once, again = nodes(), nodes()
    expected = [ask(once, 0, "new"), ask(once, 1, "continued"), ask(once, 2, "continued")]
    ask(again, 0, "new")
    ask(again, 1, "continued")
    np.testing.assert_array_equal(ask(again, 1, "continued"), expected[1])
    np.testing.assert_array_equal(ask(again, 2, "continued"), expected[2])
