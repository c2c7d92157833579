"""The page of an advice: the verdict as a person would say it, then what it rests on."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fedkin.advice.directory import read_advice
from fedkin.advice.result import Advice, by_weight, candidate_title, records
from fedkin.files import write_atomically
from fedkin.report.advice_charts import gain_chart, shares_chart, weights_chart
from fedkin.report.contributions import SecondOpinion, second_opinion
from fedkin.report.html import NAME, asset, environment
from fedkin.report.reading import read_contributions
from fedkin.valuation.result import Contributions
from fedkin.version import __version__

QUESTIONS = {
    "join": "Should you join? Yes.",
    "alone": "Should you join? No.",
    "unclear": "Should you join? It is not clear yet.",
}


def write_advice_page(directory: Path) -> Path:
    """Read a directory of `fedkin advise` and write the page into it."""
    advice, content = read_advice(directory)
    path = directory / NAME
    page = render_advice(advice, content, read_contributions(directory))
    write_atomically(path, page.encode())
    return path


def render_advice(
    advice: Advice, content: dict[str, Any], contributions: Contributions | None = None
) -> str:
    """Return the page.

    Args:
        advice: The advice.
        content: What its directory says about the tables.
        contributions: What each node contributes, if that was asked.
    """
    opinion = second_opinion(contributions)
    pages: Environment = environment()
    return pages.get_template("advice.html").render(
        advice=advice,
        question=QUESTIONS[advice.verdict],
        reason=_reason(advice),
        facts={
            "What do you gain?": _gain_sentence(advice),
            "How sure is that?": _sureness(advice),
            "With whom?": _partners(advice),
            "What now?": _next_step(advice),
        },
        gain_chart=gain_chart(advice),
        shares_chart=shares_chart(advice),
        weights_chart=None if advice.weights.empty else weights_chart(advice),
        candidates=[
            (candidate_title(row["candidate"]), row["candidate"] == advice.compared, row)
            for row in records(advice.candidates)
        ],
        nodes=_cards(advice, content, opinion),
        second_opinion=opinion,
        owner=content["owner"],
        columns=content["columns"],
        label=content["label"],
        request=json.dumps(content, indent=2, ensure_ascii=False),
        style=Markup(f"{asset('report.css')}\n{asset('advice.css')}"),
        version=__version__,
    )


def _reason(advice: Advice) -> str:
    own = f"our own {advice.owner_rows} cases"
    if advice.verdict == "join":
        return f"A model learned with the others predicts better than one from y{own} alone."
    if advice.verdict == "alone":
        return f"A model from y{own} alone predicts better than one learned with the others."
    return f"Y{own} are too few to tell whether learning with the others helps you."


def _gain_sentence(advice: Advice) -> str:
    alone, best = advice.candidates.loc["alone"], advice.candidates.loc[advice.compared]
    if advice.accuracy_gain is None:
        return (
            f"A prediction is typically off by {float(best['loss']) ** 0.5:.3g} if you join, and by "
            f"{float(alone['loss']) ** 0.5:.3g} alone."
        )
    before, after = (round(100 * float(each["accuracy"])) for each in (alone, best))
    if before != after:
        number = f"bout {abs(after - before)} {'more' if after > before else 'fewer'}"
        what = "correct prediction" if abs(after - before) == 1 else "correct predictions"
        change = f"{number} {what} per 100 new cases if you join: {after} instead of {before}"
        if advice.verdict == "alone":
            return f"You would lose: a{change}." if after < before else f"A{change}, by chance."
        chance = ", which may be chance" if advice.verdict == "unclear" else ""
        return f"A{change}{chance}.{_other_score(advice, after - before)}"
    same = f"bout {before} of 100 new cases are predicted correctly either way."
    if advice.verdict != "join":
        return f"Nothing that shows{' yet' if advice.verdict == 'unclear' else ''}: a{same}"
    return f"A{same} But the model knows better how sure it may be of each prediction."


def _other_score(advice: Advice, more_correct: int) -> str:
    """Say so where the loss, which the verdict and the pictures go by, contradicts the accuracy."""
    if advice.gain.value * more_correct >= 0:
        return ""
    ahead = "better" if advice.gain.value > 0 else "worse"
    return f" Counting also how sure each prediction is, as the picture below does, joining looks {ahead}."


def _sureness(advice: Advice) -> str:
    if advice.caution is not None:
        return f"Not sure at all. {advice.caution}"
    rows = advice.owner_rows
    certain = advice.gain.low * advice.gain.high > 0
    if advice.verdict == "unclear":
        first = f"Not sure: {rows} cases are too few to tell."
    elif advice.verdict == "join" and certain:
        first = f"Very sure that it helps: chance would hardly ever show this on {rows} cases."
    elif advice.verdict == "join":
        first = (
            f"Fairly sure that it helps: if it did not, {rows} cases would look like this less than once in "
            "20 times. How much it helps is less sure."
        )
    elif certain:
        first = f"Very sure: every way of joining clearly does worse on your {rows} cases."
    else:
        first = f"Fairly sure: no way of joining fits your {rows} cases."
    return f"{first} {_range(advice)}"


def _range(advice: Advice) -> str:
    """Say within which limits the truth most likely lies."""
    if advice.accuracy_gain is None:
        alone = float(advice.candidates.loc["alone", "loss"])
        low, high = (max(alone - end, 0.0) ** 0.5 for end in advice.gain[:0:-1])
        return f"With 90% confidence, a prediction is off by {low:.3g} to {high:.3g} if you join."
    low, high = (round(100 * end) for end in advice.accuracy_gain[1:])
    if low == high == 0:
        limits = "no more and no fewer correct predictions"
    elif low >= 0:
        limits = f"{low} to {high} more correct predictions"
    elif high <= 0:
        limits = f"{-high} to {-low} fewer correct predictions"
    else:
        limits = f"anything from {-low} fewer to {high} more correct predictions"
    return f"With 90% confidence, joining means {limits} per 100 cases."


def _partners(advice: Advice) -> str:
    if advice.verdict == "alone":
        return "With nobody. The final model was trained on your own cases only."
    others = advice.named_shares
    if advice.verdict == "join":
        return f"With {others}. These are their shares in the model; the rest comes from your own cases."
    return (
        f"That is not settled yet. Until then, the final model mixes both: {advice.own_share:.0%} of it "
        f"comes from your own cases, the rest from {others}."
    )


def _next_step(advice: Advice) -> str:
    if advice.verdict == "join":
        return (
            "Use the model next to this page: it has learned from your cases and from the others."
        )
    if advice.verdict == "alone":
        return "Use the model next to this page."
    return (
        "Collect more cases and ask again. Until then, use the model next to this page. It mixes "
        "what your cases say with what the others say. In fedkin's tests that was on average as good as the "
        "better choice."
    )


def _cards(
    advice: Advice, content: dict[str, Any], opinion: SecondOpinion | None
) -> list[dict[str, Any]]:
    """Return what each node's card shows, the largest weight first."""
    cards = []
    contributed = {} if opinion is None else {row["node"]: row for row in opinion.rows}
    for row in by_weight(advice):
        known = content["nodes"].get(row["node"], {}) | contributed.get(row["node"], {})
        classes = known.get("classes") or {}
        counts = [count for count in classes.values() if count is not None]
        # A node whose table stays with it says which classes there are, and not how often.
        balance = [(each, count / sum(counts)) for each, count in classes.items() if counts]
        names = [] if counts else list(classes)
        cards.append(
            {"name": row["node"], "balance": balance, "class_names": names, **known, **row}
        )
    return cards
