"""The table of a study: every method in every cell, next to published results where there are any."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Record
from fedkin.report.style import scenario_title

COSTS = ("synchronizations", "points", "bytes_up", "bytes_down", "seconds")
PAPER_COLUMNS = ("paper", "paper_spread", "difference")
"""Where there are published results (`Record.paper`): the accuracy, its spread, and ours less theirs."""
COLUMNS = [
    *("dataset", "setting", "target", "method", "seeds", "accuracy", "deviation", "best"),
    *PAPER_COLUMNS,
    *COSTS,
]


def summary(record: Record) -> pd.DataFrame:
    """Return one row per cell and method: mean and standard deviation over seeds, and costs.

    A run's accuracy is its test accuracy at its best validation accuracy. The standard deviation is that
    of a sample (n − 1); one seed has none. Costs are means over whole runs.
    """
    rows = []
    for cell in record.cells:
        of_cell = [
            _summarize(record, cell, label) for label in record.labels if record.of(cell, label)
        ]
        best = max((row["accuracy"] for row in of_cell), default=np.nan)
        rows += [row | {"best": row["accuracy"] == best} for row in of_cell]
    return pd.DataFrame(rows, columns=COLUMNS)


def _summarize(record: Record, cell: Cell, label: str) -> dict[str, Any]:
    runs = record.of(cell, label)
    scores = np.array([_number(run.outcome.get("test_accuracy")) for run in runs])
    accuracy = float(scores.mean())
    paper, spread = np.nan, np.nan
    if record.paper is not None:
        paper, spread = record.paper.value(cell, record.labels[label], runs) or (paper, spread)
    return {
        **cell._asdict(),
        "method": label,
        "seeds": len(runs),
        "accuracy": accuracy,
        "deviation": float(scores.std(ddof=1)) if len(runs) > 1 else np.nan,
        "paper": paper,
        "paper_spread": spread,
        "difference": accuracy - paper,
        **{name: float(np.mean([run.total[name] for run in runs])) for name in COSTS},
    }


def rows_by_cell(table: pd.DataFrame, record: Record) -> list[tuple[Cell, list[Any]]]:
    """Arrange the summary: one row per cell, one entry per method, None if a method has no run."""
    rows: Iterable[Any] = table.itertuples()
    entries = {(Cell(row.dataset, row.setting, row.target), row.method): row for row in rows}
    return [
        (cell, [entries.get((cell, label)) for label in record.labels]) for cell in record.cells
    ]


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def notes(record: Record) -> list[str]:
    """Return what a reader of the table has to know."""
    found = [
        "Test accuracy at the best validation accuracy of a run: mean ± standard deviation over seeds. "
        "The best of a row is bold."
    ]
    datasets = {cell.dataset for cell in record.cells}
    origins = {run.data.get("origin") for run in record.runs if run.cell.dataset == "cifar10"}
    if "cifar10-jpeg" in datasets or ("cifar10" in datasets and origins != {"cifar10"}):
        exact = origins <= {"cifar10-jpeg"}
        found.append(
            "CIFAR-10 was read from JPEG files, re-encoded from the original images."
            if exact
            else "CIFAR-10 may have been read from JPEG files, re-encoded where the original images were "
            "not available."
        )
    return found if record.paper is None else found + record.paper.notes(record)


def entry(accuracy: float, deviation: float) -> str:
    """Format an accuracy with its standard deviation, if there is one.

    >>> entry(0.8512, 0.0123), entry(0.8512, float("nan"))
    ('0.851 ± 0.012', '0.851')
    """
    if np.isnan(accuracy):
        return "–"
    return f"{accuracy:.3f}" + ("" if np.isnan(deviation) else f" ± {deviation:.3f}")


def signed(difference: float) -> str:
    """Format a difference with its sign; a difference that rounds to zero has none.

    >>> signed(0.0214), signed(-0.0214), signed(0.0001)
    ('+0.021', '−0.021', '0.000')
    """
    text = f"{difference:+.3f}"
    return "0.000" if text in ("+0.000", "-0.000") else text.replace("-", "−")


def to_csv(table: pd.DataFrame) -> str:
    """Write the table with every digit, one row per cell and method."""
    if table.paper.isna().all():
        table = table.drop(columns=list(PAPER_COLUMNS))
    return table.to_csv(index=False)


def to_markdown(table: pd.DataFrame) -> str:
    """Write the table as Markdown, with one row per cell and one column per method."""

    def shown(row: Any) -> str:
        text = entry(row.accuracy, row.deviation)
        text = f"**{text}**" if row.best else text
        if np.isnan(row.paper):
            return text
        return f"{text} (paper {row.paper:.3f}, {signed(row.difference)})"

    header, rows = _by_cell(table, shown, _markdown_text)
    header = ["data set", "setting", "target", *map(_markdown_text, header)]
    lines = [header, ["---"] * 3 + ["---:"] * (len(header) - 3), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(table: pd.DataFrame) -> str:
    """Write the table for LaTeX with booktabs, with the paper's values in a second line."""

    def shown(row: Any) -> str:
        mean = f"{row.accuracy:.3f}"
        mean = rf"\mathbf{{{mean}}}" if row.best else mean
        deviation = "" if np.isnan(row.deviation) else rf" \pm {row.deviation:.3f}"
        return f"${mean}{deviation}$"

    def paper(row: Any) -> str:
        if np.isnan(row.paper):
            return ""
        return (
            rf"{{\footnotesize ${row.paper:.3f}$ (${signed(row.difference).replace('−', '-')}$)}}"
        )

    header, rows = _by_cell(table, shown, _latex_text)
    _, papers = _by_cell(table, paper, _latex_text)
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{lll{'c' * len(header)}}}",
        r"\toprule",
        " & ".join(["data set", "setting", "target", *map(_latex_text, header)]) + r" \\",
        r"\midrule",
    ]
    for row, paper_row in zip(rows, papers, strict=True):
        lines.append(" & ".join(row) + r" \\")
        if any(cell not in ("", "–") for cell in paper_row[3:]):
            values = ("" if cell == "–" else cell for cell in paper_row[3:])
            lines.append(" & ".join([r"\quad\footnotesize paper", "", "", *values]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _by_cell(
    table: pd.DataFrame, shown: Callable[[Any], str], text: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """Arrange the table: one row per cell, one column per method, – if a method has no run."""
    methods = list(dict.fromkeys(table.method))
    rows = []
    for key, of_cell in table.groupby(["dataset", "setting", "target"], sort=False):
        dataset, setting, target = map(str, key)  # pyright: ignore[reportArgumentType]
        found: Iterable[Any] = of_cell.itertuples()
        entries = {row.method: shown(row) for row in found}
        titles = [dataset, scenario_title(setting).removeprefix("setting "), target]
        rows.append(
            [text(title) for title in titles] + [entries.get(method, "–") for method in methods]
        )
    return methods, rows


def _markdown_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


LATEX_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def _latex_text(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "tex": to_latex,
}
"""The writers of the table by file extension."""
