"""README.md of the leaderboard and its figures, made of the tables in `results/` alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedkin.files import write_atomically
from fedkin.report.style import method_title
from reproduction.leaderboard import hospitals, plan
from reproduction.leaderboard.board import (
    CLAIMED_SHARE,
    MOST_LOSS,
    MOST_WEIGHT,
    OURS,
    Board,
    Cell,
)

PAGE, TEMPLATE, FINDINGS = "README.md", "README.md.jinja", "findings.txt"
COMPARED_UNDER_ATTACK = ("bilevel", "fedavg", "median", "trimmed-mean", "krum", "local")
"""The methods that the table on bad nodes has."""


def write_page(directory: Path = plan.DIRECTORY) -> list[Path]:
    """Write the page and its figures; return what was written."""
    # Matplotlib takes a second to load: only this needs it.
    from reproduction.leaderboard.figures import write_figures

    board = Board()
    page = directory / PAGE
    write_atomically(page, text(board).encode())
    return [page, *write_figures(board, directory)]


def text(board: Board) -> str:
    """Return the page."""
    environment = Environment(
        loader=FileSystemLoader(plan.DIRECTORY),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown made of our own words and numbers
    )
    environment.filters |= {"title": method_title, "number": number, "signed": signed}
    return environment.get_template(TEMPLATE).render(
        board=board,
        plan=plan,
        splits=hospitals.SPLITS,
        blocks=plan.BLOCKS,
        ours=OURS,
        findings=(plan.DIRECTORY / FINDINGS).read_text(encoding="utf-8").strip(),
        ranks=rank_table(board),
        leads=lead_table(board),
        summaries=[
            summary(board, block) | {"text": summary_text(summary(board, block))}
            for block in plan.BLOCKS
        ],
        overall=overall(board),
        tables=[accuracy_table(board, study) for study in sorted(plan.ORDER)],
        tuning=tuning_table(),
        attacks=attack_table(board),
        claims=claims(board),
        claimed_share=CLAIMED_SHARE,
        most_weight=MOST_WEIGHT,
        most_loss=MOST_LOSS,
        costs=cost_table(board),
        missing=missing_lines(board),
        hours=total_hours(board),
    )


def number(value: float, digits: int = 3) -> str:
    """Write a number; a dash if there is none."""
    return "–" if np.isnan(value) else f"{value:,.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """Write a difference with its sign."""
    written = f"{round(value, digits) + 0.0:+.{digits}f}"  # no zero is negative
    return "–" if np.isnan(value) else written.replace("-", "−")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first hold numbers."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def rank_table(board: Board) -> str:
    """Return mean ranks by block and over blocks, and how often each method is first."""
    ranks, firsts = board.mean_ranks(), board.firsts()
    blocks = [block for block in plan.BLOCKS if block in ranks]
    if not blocks:
        return ""
    rows = [
        [
            f"**{method_title(str(method))}**" if method == OURS else method_title(str(method)),
            *(number(row[block], 1) for block in blocks),
            number(row["all"], 1),
            str(firsts[method]),
            plan.seen_by(str(method)),
        ]
        for method, row in ranks.iterrows()
    ]
    return markdown(["method", *blocks, "all blocks", "firsts", "sees of single nodes"], rows)


def lead_table(board: Board) -> str:
    """Return how far Bi-level is ahead of each method, run by run, in each block and its standard error."""
    blocks = [block for block in plan.BLOCKS if board.ranked(block)]
    rows = []
    for method in board.methods:
        if method == OURS or not blocks:
            continue
        leads = [board.paired(board.ranked(block), method) for block in blocks]
        rows.append([method_title(method), *(_with_error(*lead) for lead in leads)])
    return markdown(["method", *blocks], rows) if rows else ""


def _with_error(value: float, error: float) -> str:
    return "–" if np.isnan(value) else f"{signed(value)} ± {number(error)}"


def overall(board: Board) -> dict[str, Any]:
    """Return Bi-level's place over all blocks that have complete cells."""
    ranks = board.mean_ranks()
    blocks = [block for block in plan.BLOCKS if block in ranks]
    cells = board.ranked()
    return {
        "blocks": blocks,
        "cells": len(cells),
        "contested": sum(len(board.contested(block)) for block in plan.BLOCKS),
        "place": int((ranks["all"] < ranks["all"][OURS]).sum()) + 1 if blocks else None,
        "rank": float(ranks["all"][OURS]) if blocks else float("nan"),
        "methods": len(board.methods),
        "best": str(ranks.index[0]) if blocks else "",
        "best_rank": float(ranks["all"].iloc[0]) if blocks else float("nan"),
        "firsts": int(board.firsts()[OURS]),
    }


def summary(board: Board, block: str) -> dict[str, Any]:
    """Return where Bi-level wins within a block, and where it does not."""
    cells, contested = board.ranked(block), board.contested(block)
    found: dict[str, Any] = {"block": block, "title": plan.BLOCKS[block]}
    found |= {"complete": len(cells), "contested": len(contested)}
    if not cells:
        return found
    ranks = board.mean_ranks()[block].sort_values(kind="stable")
    leads = {cell: board.lead(cell) for cell in cells}
    best = max(leads, key=lambda cell: leads[cell][0])
    worst = min(leads, key=lambda cell: leads[cell][0])
    return found | {
        "place": int((ranks < ranks[OURS]).sum()) + 1,
        "rank": float(ranks[OURS]),
        "first": str(ranks.index[0]),
        "firsts": int(board.firsts(block)[OURS]),
        "best": (best.title, *leads[best]),
        "worst": (worst.title, *leads[worst]),
    }


def summary_text(found: dict[str, Any]) -> str:
    """Say how Bi-level did within a block."""
    complete, contested = found["complete"], found["contested"]
    cells = f"{complete} of {contested} cell{'s' * (contested > 1)} complete"
    if not complete:
        return f"{cells}: not ranked."
    first = "" if found["first"] == OURS else f" (first: {method_title(found['first'])})"
    ranked = f"mean rank {number(found['rank'], 1)}, place {found['place']}{first}"
    _, lead, other = found["best"]
    if complete == 1:
        lead_words = f"{signed(lead)} to {method_title(other)}, the best other method"
        return f"{cells}. Bi-level has {ranked}; {lead_words}."
    best, worst = (
        f"{title} ({signed(lead)} to {method_title(other)}"
        for title, lead, other in (found["best"], found["worst"])
    )
    return (
        f"{cells}. Bi-level is first in {found['firsts']} of them, with {ranked}. Its best cell is {best}, "
        f"the best other method), its worst {worst})."
    )


def accuracy_table(board: Board, study: str) -> dict[str, str]:
    """Return the accuracies of a study: a row per method, a column per cell, the best in bold."""
    cells = [cell for cell in board.cells if cell.study == study]
    everyone = any(
        len(str(own["owners"].iloc[0]).split(",")) > 1
        for cell in cells
        for method in board.methods
        if len(own := board.of(cell, method))
    )
    best = {
        cell: max(_known(board.mean(cell, method) for method in board.methods)) for cell in cells
    }
    rows = []
    for method in board.methods:
        if not any(board.count(cell, method) for cell in cells):
            continue
        entries = [_entry(board, cell, method, best[cell], worst=everyone) for cell in cells]
        rows.append([method_title(method), *entries])
    return {
        "study": study,
        "table": markdown(["method", *(_short(cell, study) for cell in cells)], rows)
        if rows
        else "",
        "everyone": "yes" if everyone else "",
    }


def _short(cell: Cell, study: str) -> str:
    """Return the title of a cell without the data set, which all cells of a table share."""
    return cell.title.split(", ", 1)[-1].removeprefix("setting 1, ")


def _known(values: Any) -> list[float]:
    return [value for value in values if not np.isnan(value)] or [float("nan")]


def _entry(board: Board, cell: Cell, method: str, best: float, *, worst: bool) -> str:
    seeds = board.count(cell, method)
    if not seeds:
        return "–"
    if diverged := board.diverged(cell, method):
        return f"diverged ({diverged} of {seeds} seeds)"
    mean, deviation = board.mean(cell, method), board.deviation(cell, method)
    entry = number(mean)
    if round(mean, 4) == round(best, 4):
        entry = f"**{entry}**"
    if not np.isnan(deviation):
        entry += f" ± {number(deviation)}"
    if worst:
        entry += f", worst {number(board.mean(cell, method, 'worst'))}"
    return entry + ("" if seeds == board.seeds else f" ({seeds} of {board.seeds} seeds)")


def tuning_table() -> str:
    """Return what was chosen for each method from how many combinations."""
    rows = []
    for method in plan.method_names():
        own = plan.OWN_SETTINGS.get(method, {})
        choices = plan.choices_of(method, "cnn")
        words = [f"`{name}` {', '.join(f'{v:g}' for v in values)}" for name, values in own.items()]
        if method == OURS:
            words = ["nothing; `own_cap` (2) where every node is an owner"]
        elif not words:
            words = ["the step size"]
        else:
            words = ["the step size", *words]
        count = plan.combinations(choices) if choices else 0
        rows.append([method_title(method), "; ".join(words), str(count) if choices else "–"])
    return markdown(["method", "chosen", "combinations"], rows)


def attack_table(board: Board) -> str:
    """Return what bad nodes cost, and the weight that Bi-level gives them."""
    rows = []
    for cell in board.cells:
        if cell.kind is None or cell.is_reference:
            continue
        weights = board.of(cell, OURS)
        share = float(weights["bad_weight"].max()) if len(weights) else float("nan")
        losses = [board.losses(cell, method) for method in COMPARED_UNDER_ATTACK]
        entries = [signed(-float(own.mean())) if len(own) else "–" for own in losses]
        if any(entry != "–" for entry in entries):
            rows.append([cell.title.replace(" setting 1,", ""), _percent(share), *entries])
    if not rows:
        return ""
    titles = [method_title(method) for method in COMPARED_UNDER_ATTACK]
    return markdown(["federation", "weight of bad nodes, most", *titles], rows)


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.1%}"


def claims(board: Board) -> list[dict[str, Any]]:
    """Judge, cell by cell, whether Bi-level withstands bad nodes: by weight and by accuracy."""
    found = []
    for cell in board.cells:
        if not cell.claimed or not board.count(cell, OURS):
            continue
        weights, losses = board.of(cell, OURS)["bad_weight"], board.losses(cell, OURS)
        if not len(losses):
            continue
        found.append(
            {
                "title": cell.title.replace(" setting 1,", ""),
                "seeds": len(losses),
                "weight": float(weights.max()),
                "weight_holds": bool((weights <= MOST_WEIGHT).all()),
                "loss": float(losses.mean()),
                "worst_loss": float(losses.max()),
                "loss_holds": bool(losses.mean() <= MOST_LOSS),
            }
        )
    return found


def cost_table(board: Board) -> str:
    """Return what a run costs in each study: synchronizations, megabytes, seconds."""
    studies = sorted(plan.ORDER)
    rows = []
    for method in board.methods:
        costs = [board.costs(study, method) for study in studies]
        entries = [
            "–"
            if np.isnan(cost["seconds"])
            else f"{cost['synchronizations']:.0f} / {number(cost['bytes'] / 1e6, 1)} / "
            f"{number(cost['seconds'], 0)}"
            for cost in costs
        ]
        if any(entry != "–" for entry in entries):
            rows.append([method_title(method), *entries])
    return markdown(["method", *studies], rows) if rows else ""


def total_hours(board: Board) -> float:
    """Return the time of all runs in the tables, one after the other, without tuning."""
    seconds = [
        own["seconds"].sum()
        for cell in board.cells
        for method in board.methods
        if len(own := board.of(cell, method))
    ]
    return float(np.sum(seconds)) / 3600


def missing_lines(board: Board) -> list[str]:
    """Say what is missing, one line per study."""
    lines = []
    for study in sorted(plan.ORDER):
        missing = [each for each in board.missing() if each["study"] == study]
        if not missing:
            continue
        cells = missing[0]["of"]
        whole = [each for each in missing if each["runs"] == cells * board.seeds]
        total = sum(each["runs"] for each in missing)
        planned = cells * board.seeds * len(board.methods)
        words = f"`{study}`: {total} of {planned} runs"
        if len(whole) == len(board.methods):
            words += ", that is all of them"
        else:
            parts = [f"{method_title(each['method'])} {each['runs']}" for each in missing]
            words += f" ({', '.join(parts)})"
        lines.append(words)
    return lines
