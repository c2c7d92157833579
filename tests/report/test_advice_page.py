"""The page of an advice, from numbers that need no training."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.advice.result import Advice
from fedkin.advice.verdict import Interval
from fedkin.report.advice_page import render_advice

CONTENT = {
    "nodes": {
        "north <b>": {"rows": 80, "missing": 0.25, "classes": {"no": 60, "yes": 20}},
        "south": {"rows": 40, "missing": 0.0, "classes": {"no": 10, "yes": 30}},
    },
    "owner": {"rows": 50, "missing": 0.1, "classes": {"no": 30, "yes": 20}},
    "columns": ["age", "sex"],
    "label": "sick",
}


@pytest.fixture(scope="module")
def model():
    x = np.linspace(-1, 1, 20)[:, None]
    rows = (x, (x[:, 0] > 0).astype(int))
    return fedkin.fit([rows, rows], rows, method="fedavg", steps=1)


def advice(model, verdict, gain, at_cap=False, caution=None):
    candidates = pd.DataFrame(
        {
            "loss": [0.6, 0.55, 0.5, 0.6 - gain.value, 0.6 - gain.value],
            "gain": [0.0, 0.05, 0.1, gain.value, gain.value],
            "gain_low": [0.0, -0.1, -0.05, gain.low, gain.low],
            "gain_high": [0.0, 0.2, 0.25, gain.high, gain.high],
            "share": [0.1, 0.2, 0.2, 0.5, 1.0],
            "accuracy": [0.7, 0.72, 0.74, 0.8, 0.8],
        },
        index=pd.Index(["alone", "equal", "size", "learned", "final"], name="candidate"),
    )
    weights = pd.DataFrame(
        {
            "rows": [80, 40],
            "weight": [0.9, 0.1],
            "low": [0.6, 0.0],
            "high": [1.0, 0.4],
            "at_cap": [at_cap, False],
            "share": [0.55, 0.05],
        },
        index=pd.Index(["north <b>", "south"], name="node"),
    )
    return Advice(
        verdict,
        gain,
        Interval(0.1, 0.0, 0.2),
        "learned",
        candidates,
        weights,
        50,
        caution,
        None,
        model.cost,
        model,
    )


@pytest.mark.parametrize(
    ("verdict", "gain", "says"),
    [
        (
            "join",
            Interval(0.2, 0.1, 0.3),
            [
                "Should you join? Yes.",
                "About 10 more correct predictions per 100 new cases if you join: 80 instead of 70.",
                "Very sure",
                "0 to 20 more correct predictions",
                "With north",
            ],
        ),
        (
            "alone",
            Interval(-0.2, -0.3, -0.1),
            ["Should you join? No.", "Very sure: every way of joining", "With nobody."],
        ),
        (
            "join",
            Interval(0.2, -0.01, 0.41),
            ["Should you join? Yes.", "Fairly sure that it helps", "less than once in 20 times"],
        ),
        (
            "unclear",
            Interval(0.01, -0.1, 0.12),
            [
                "not clear yet",
                "50 cases are too few",
                "40% of it comes from your own cases",
                "(55%)",
                "(5%)",
            ],
        ),
    ],
)
def test_the_first_screen_answers(model, verdict, gain, says):
    page = render_advice(advice(model, verdict, gain), CONTENT)
    first = page[: page.index("Joined or alone")]
    for text in says:
        assert text in first
    assert "log loss" not in first  # words that need no statistics


def test_limits_are_said_in_cases_that_a_person_can_count(model):
    for limits, words in {
        Interval(0.0, -0.06, 0.08): "anything from 6 fewer to 8 more correct predictions per 100",
        Interval(0.0, -0.08, -0.02): "2 to 8 fewer correct predictions",
        Interval(0.0, 0.0, 0.0): "no more and no fewer",
    }.items():
        own = replace(advice(model, "unclear", Interval(0.01, -0.1, 0.12)), accuracy_gain=limits)
        assert words in render_advice(own, CONTENT)


def test_fewer_correct_predictions_and_a_lower_loss_are_explained(model):
    for gain, says in {
        0.02: "as the picture below does, joining looks better",
        -0.02: None,
    }.items():
        own = advice(model, "unclear", Interval(gain, -0.1, 0.12))
        candidates = own.candidates.copy()
        candidates.loc["alone", "accuracy"], candidates.loc[own.compared, "accuracy"] = 0.61, 0.57
        page = render_advice(replace(own, candidates=candidates), CONTENT)
        assert "bout 4 fewer correct predictions" in page
        assert (says in page) if says else ("joining looks" not in page)


def test_errors_of_numbers_are_in_the_unit_of_the_label(model):
    own = replace(advice(model, "join", Interval(0.35, 0.24, 0.44)), accuracy_gain=None)
    page = render_advice(own, CONTENT | {"owner": {"rows": 50, "missing": 0.1}})
    # Squared errors: 0.6 alone, 0.16 to 0.36 if joined.
    assert "off by 0.4 to 0.6 if you join" in page


def test_the_first_chart_shows_shares_and_not_weights_of_a_candidate(model):
    page = render_advice(advice(model, "join", Interval(0.2, 0.1, 0.3)), CONTENT)
    shares = [float(text) for text in re.findall(r'data-share="([0-9.]+)"', page)]
    assert shares == pytest.approx([0.4, 0.55, 0.05])
    assert page.index("data-share") < page.index("data-weight")


def test_names_are_escaped_and_every_number_is_there(model):
    page = render_advice(advice(model, "join", Interval(0.2, 0.1, 0.3), at_cap=True), CONTENT)
    assert "<b>" not in page
    assert "north &lt;b&gt;" in page
    assert 'data-weight="0.9"' in page
    assert 'data-value="0.2"' in page
    assert "At the cap" in page
    for text in ("25%", "75%", "age, sex", "0.90 (0.60 to 1.00)"):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")


def test_too_few_rows_of_a_class_are_said_at_once(model):
    few = "Only 2 of your rows have the class 'yes'; a verdict needs 3."
    page = render_advice(advice(model, "unclear", Interval(0, -1, 1), caution=few), CONTENT)
    assert few.replace("'", "&#39;") in page[: page.index("Joined or alone")]
