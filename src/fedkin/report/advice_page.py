"""The page of an advice: the verdict as a person would say it, then what it rests on."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fedkin.advice.directory import read_advice
from fedkin.advice.result import Advice, by_weight, candidate_title, records
from fedkin.files import write_atomically
from fedkin.report.advice_charts import gain_chart, weights_chart
from fedkin.report.html import NAME, asset, environment
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
    write_atomically(path, render_advice(advice, content).encode())
    return path


def render_advice(advice: Advice, content: dict[str, Any]) -> str:
    """Return the page.

    Args:
        advice: The advice.
        content: What its directory says about the tables.
    """
    pages: Environment = environment()
    return pages.get_template("advice.html").render(
        advice=advice,
        question=QUESTIONS[advice.verdict],
        sureness=_sureness(advice),
        gains=_gain_sentence(advice),
        next_step=_next_step(advice),
        gain_chart=gain_chart(advice),
        weights_chart=None if advice.weights.empty else weights_chart(advice),
        candidates=[
            (candidate_title(row["candidate"]), row["candidate"] == advice.compared, row)
            for row in records(advice.candidates)
        ],
        nodes=_cards(advice, content),
        owner=content["owner"],
        columns=content["columns"],
        label=content["label"],
        request=json.dumps(content, indent=2, ensure_ascii=False),
        style=Markup(f"{asset('report.css')}\n{asset('advice.css')}"),
        version=__version__,
    )


def _sureness(advice: Advice) -> str:
    if advice.caution is not None:
        return f"Not at all. {advice.caution}"
    if advice.verdict == "unclear":
        return (
            f"Your {advice.owner_rows} rows are too few to tell: the true gain may well be positive or "
            "negative."
        )
    word = "gain" if advice.verdict == "join" else "loss"
    ends = sorted(abs(number) for number in advice.gain[1:])
    if advice.gain.low * advice.gain.high <= 0:
        return (
            f"Fairly sure: the {word} on your {advice.owner_rows} rows is more than chance explains. But the "
            f"90% interval, {advice.gain.low:.2g} to {advice.gain.high:.2g} of {advice.score_name}, also "
            "allows for other rows, and it includes zero."
        )
    return (
        f"Sure, as far as your {advice.owner_rows} rows can tell: with 90% confidence the {word} is "
        f"between {ends[0]:.2g} and {ends[1]:.2g} of {advice.score_name}."
    )


def _gain_sentence(advice: Advice) -> str:
    alone, best = advice.candidates.loc["alone"], advice.candidates.loc[advice.compared]
    if advice.accuracy_gain is not None:
        before, after = f"{alone['loss']:.2f}", f"{best['loss']:.2f}"
        change = f"stays at {before}" if before == after else f"goes from {before} to {after}"
        return (
            f"Of 100 new cases, about {100 * float(alone['accuracy']):.0f} are predicted correctly alone, "
            f"and about {100 * float(best['accuracy']):.0f} if you join. The {advice.score_name}, which also "
            f"counts how sure a prediction is, {change} (lower is better)."
        )
    return (
        f"The typical error of a prediction goes from {float(alone['loss']) ** 0.5:.3g} alone to "
        f"{float(best['loss']) ** 0.5:.3g} if you join (root mean squared error; lower is better)."
    )


def _next_step(advice: Advice) -> str:
    if advice.verdict == "join":
        return (
            "Use the model in this directory: it was trained with the nodes and with your own rows."
        )
    if advice.verdict == "alone":
        return "Use the model in this directory: it was trained on your own rows only."
    return (
        "Collect more rows and ask again. Until then, use the model in this directory: it mixes what you "
        "know alone with what the others know, and usually does about as well as the better of the two."
    )


def _cards(advice: Advice, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each node's card shows, the largest weight first."""
    cards = []
    for row in by_weight(advice):
        known = content["nodes"].get(row["node"], {})
        classes = known.get("classes") or {}
        counts = [count for count in classes.values() if count is not None]
        # A node whose table stays with it says which classes there are, and not how often.
        balance = [(each, count / sum(counts)) for each, count in classes.items() if counts]
        names = [] if counts else list(classes)
        cards.append(
            {"name": row["node"], "balance": balance, "class_names": names, **known, **row}
        )
    return cards
