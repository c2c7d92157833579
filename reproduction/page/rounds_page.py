"""The text of `rounds.md` and its table as CSV."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedkin.report.tables import entry
from reproduction.page import color, rounds, rounds_figures
from reproduction.page.collected import Reproduction, StudyState
from reproduction.page.condensed import ROUND_STUDIES
from reproduction.page.markdown import markdown_environment, missing_words

PAGE, TABLE, TEMPLATE = "rounds.md", "rounds.csv", "rounds.md.jinja"


def texts(reproduction: Reproduction) -> dict[str, str]:
    """Return the page and its table by file name; nothing if the directory has no study of rounds."""
    studies = reproduction.studies_of(ROUND_STUDIES)
    if not studies:
        return {}
    table = rounds.measure(reproduction)
    environment = markdown_environment()
    environment.filters |= {
        "number": _number,
        "percent": "{:.1%}".format,
        "known": lambda value: not np.isnan(value),
        "megabytes": lambda value: _number(value / 1e6, 1),
    }
    rows: Iterable[Any] = table.itertuples()
    colors = color.measure(reproduction)
    color_rows: Iterable[Any] = colors.itertuples()
    color_goal = color.goal(colors)
    page = environment.get_template(TEMPLATE).render(
        rows=list(rows),
        color_rows=list(color_rows),
        goals=[*rounds.goals(table), *([color_goal] if color_goal else [])],
        studies=studies,
        seeds=sorted({s for each in studies if _compares_rounds(each) for s in each.config.seed}),
        missing=missing_words(studies),
        entry=lambda mean, deviation: "–" if np.isnan(mean) else entry(mean, deviation),
        figures=rounds_figures.names(rounds.runs_by_role(reproduction)),
        early=rounds.EARLY,
        late=rounds.LATE,
        bytes_goal=rounds.BYTES_GOAL,
    )
    return {PAGE: page, TABLE: table.to_csv(index=False)}


def _compares_rounds(study: StudyState) -> bool:
    return rounds.role_of(study.name) in (rounds.SINGLE, rounds.PAPERS)


def _number(value: float, digits: int = 0) -> str:
    """Write a number; what no run is there for as a dash, what a run never reaches in words."""
    return "–" if np.isnan(value) else rounds.written(value, f"{{:.{digits}f}}")
