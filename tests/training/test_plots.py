"""Results show themselves in notebooks, and draw on matplotlib's axes."""

import matplotlib as mpl
import numpy as np
import pytest

import fedkin

DRAW = np.random.default_rng(0)


def rows(count, sign=1.0):
    x = DRAW.normal(size=(count, 2))
    return x, sign * x[:, 0] + 0.1 * DRAW.normal(size=count)


NODES = {"no$rth": rows(40), "south": rows(40), "<west>": rows(40, -1.0)}


@pytest.fixture(autouse=True)
def no_windows():
    from matplotlib import pyplot

    with mpl.rc_context({"backend": "agg"}):
        yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def result():
    return fedkin.fit(NODES, rows(20), model="ridge", cap=0.5)


@pytest.fixture(scope="module")
def everyone():
    return fedkin.fit_all(NODES, model="ridge", cap=0.5)


@pytest.fixture(scope="module")
def advice():
    return fedkin.advise(NODES, rows(20), task="regression", folds=2, repeats=1)


def widths(axes):
    return [patch.get_width() for patch in axes.patches]


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_a_result_draws_its_weights(result):
    axes = result.plot_weights()
    assert widths(axes) == list(result.weights.values())
    assert names(axes) == [r"no\$rth", "south", "<west>"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert colors[0] == colors[1] != colors[2]  # the cap decides the first two
    axes.figure.canvas.draw()


def test_a_result_draws_its_history_on_given_axes(result):
    from matplotlib import pyplot

    _, own = pyplot.subplots()
    assert result.plot_history(own) is own
    (line,) = own.lines
    assert line.get_ydata().tolist() == result.history.validation_loss.tolist()
    assert line.get_xdata().tolist() == result.history.synchronizations.tolist()


def test_a_result_shows_itself(result):
    text = repr(result)
    assert text.startswith(f"Result of bilevel: {result.cost.synchronizations} synchronizations\n")
    assert "no$rth     0.5    yes" in text
    assert result.stopped in text
    assert "array(" not in text
    page = result._repr_html_()
    assert "&lt;west&gt;" in page
    assert "<west>" not in page


def test_methods_without_weights_show_and_draw_what_they_have():
    local = fedkin.fit(NODES, rows(20), model="ridge", method="local", steps=1)
    assert "weight" not in repr(local)
    assert "<table" not in local._repr_html_()
    with pytest.raises(fedkin.InputError, match="use plot_history"):
        local.plot_weights()


def test_a_collaboration_draws_its_matrix_and_scores(everyone):
    axes = everyone.plot_matrix()
    order = [name for group in everyone.groups for name in group]
    shown = axes.images[0].get_array()
    assert np.array_equal(shown, everyone.matrix.loc[order, order])
    assert len(axes.texts) == 9
    axes = everyone.plot_scores()
    assert [line.get_label() for line in axes.lines] == list(everyone.scores.columns[1:])
    assert axes.lines[0].get_xdata().tolist() == everyone.scores.iloc[:, 1].tolist()
    axes.figure.canvas.draw()


def test_an_advice_draws_weights_and_gains_with_their_intervals(advice):
    axes = advice.plot_weights()
    assert widths(axes) == advice.weights.weight.tolist()
    ends = np.array([path.vertices[:, 0] for path in axes.collections[0].get_paths()])
    assert np.allclose(ends, advice.weights[["low", "high"]])
    axes = advice.plot_gains()
    assert widths(axes) == advice.candidates.gain.drop("alone").tolist()
    assert "squared error" in axes.get_xlabel()
    axes.figure.canvas.draw()


def test_what_is_not_axes_is_refused(result):
    with pytest.raises(fedkin.InputError, match=r"such as plt\.gca\(\)"):
        result.plot_weights("here")
