"""What the pages share: how their templates are read, and words for what is missing."""

from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedkin.report.reading import Cell, Missing
from fedkin.report.style import method_title
from reproduction.page.collected import StudyState


def markdown_environment() -> Environment:
    """Return how the templates in this directory are read."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown made of our own words and numbers
    )


def missing_words(studies: Iterable[StudyState]) -> list[str]:
    """Say what is missing, one line per study and method."""
    lines = []
    for study in studies:
        if study.missing and not study.runs:
            lines.append(f"{study.name}: all {study.planned} runs")
            continue
        by_method: dict[str, list[Missing]] = {}
        for each in study.missing:
            by_method.setdefault(each.method, []).append(each)
        for method, missing in by_method.items():
            seeds: dict[Cell, list[int]] = {}
            for each in missing:
                seeds.setdefault(each.cell, []).append(each.seed)
            cells: dict[str, list[str]] = {}
            for cell, of_cell in seeds.items():
                words = ", ".join(map(str, of_cell))
                several = len(study.config.dataset) > 1
                name = f"{cell.dataset} " if several else ""
                cells.setdefault(words, []).append(f"{name}{cell.setting} {cell.target}")
            which = "; ".join(f"seeds {words} of {', '.join(c)}" for words, c in cells.items())
            lines.append(f"{study.name}, {method_title(method)}: {len(missing)} runs ({which})")
    return lines
