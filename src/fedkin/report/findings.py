"""The findings of a study in a few sentences: whom to learn with, what you gain, what it costs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fedkin.report import curves
from fedkin.report.reading import Cell, Record
from fedkin.report.tables import entry, signed


@dataclass(frozen=True)
class Share:
    """The share of the weight that nodes like the owner have in a cell."""

    cell: Cell
    share: float
    equal: float
    """Their share with equal weights."""
    nodes: int
    similar: int


@dataclass(frozen=True)
class Gain:
    """The main method's accuracy minus that of another method, in the cells that have both."""

    label: str
    differences: np.ndarray
    """One number per cell: the mean over the seeds that both methods have."""
    band: curves.Band | None
    """Mean and interval over seeds, if there is a single cell."""


def main_label(record: Record) -> str | None:
    """Return the method that the report is about: the first one that learned weights."""
    return next(iter(curves.all_learners(record)), None)


def subject(record: Record) -> str:
    """Return the method whose gains and costs are reported: the main one, else the most accurate."""
    label = main_label(record)
    if label is not None:
        return label
    if record.kind == "fit":
        return next(iter(record.labels))
    by_cell = [_means(record, cell) for cell in record.cells]
    return max(
        record.labels,
        key=lambda label: np.mean([means[label] for means in by_cell if label in means]),
    )


def _means(record: Record, cell: Cell) -> dict[str, float]:
    """Return the mean test accuracy of each label in a cell."""
    return {
        label: float(np.mean(list(_scores(record, cell, label).values())))
        for label in record.labels
        if record.of(cell, label)
    }


def _scores(record: Record, cell: Cell, label: str) -> dict[int, float]:
    """Return the test accuracy by seed."""
    return {run.seed: run.outcome["test_accuracy"] for run in record.of(cell, label)}


def shares(record: Record, label: str) -> list[Share]:
    """Return the share of nodes like the owner in each cell that knows them, averaged over seeds."""
    found = []
    for cell in record.cells:
        runs = [run for run in record.of(cell, label) if run.weights and run.similar]
        if not runs:
            continue
        weight = [
            sum(weight for node, weight in (run.weights or {}).items() if run.similar.get(node))
            for run in runs
        ]
        nodes, similar = len(runs[0].similar), sum(runs[0].similar.values())
        found.append(Share(cell, float(np.mean(weight)), similar / nodes, nodes, similar))
    return found


def gains(record: Record, label: str) -> list[Gain]:
    """Compare the main method with every other one, seed by seed: equal seeds mean equal data."""
    found = []
    for other in record.labels:
        if other == label:
            continue
        by_cell = [
            differences
            for cell in record.cells
            if len(differences := _paired(record, cell, label, other))
        ]
        if by_cell:
            band = curves.interval(by_cell[0]) if len(by_cell) == 1 else None
            means = np.array([differences.mean() for differences in by_cell])
            found.append(Gain(other, means, band))
    return found


def _paired(record: Record, cell: Cell, label: str, other: str) -> np.ndarray:
    first, second = _scores(record, cell, label), _scores(record, cell, other)
    return np.array([first[seed] - second[seed] for seed in first if seed in second], dtype=float)


def weights_sentence(record: Record, label: str | None) -> str:
    """Say whom to learn with."""
    if label is None and any(run.owners for run in record.runs):
        return "Every node has its own answer: see “Who learns with whom”."
    if label is None:
        return "No method here learned weights for the nodes."
    known = shares(record, label)
    prefix = f"{label}: " if len(curves.all_learners(record)) > 1 else ""
    if not known:
        cell = next(cell for cell in record.cells if label in curves.learners(record, cell))
        return prefix + _heaviest(curves.final_weights(record, cell, label))
    if len(known) == 1:
        one = known[0]
        return (
            f"{prefix}The {one.similar} of {one.nodes} nodes that are like the owner got {one.share:.1%} of "
            f"the weight. Equal weights would give them {one.equal:.1%}."
        )
    values = [each.share for each in known]
    return (
        f"{prefix}Nodes like the owner got {min(values):.1%} to {max(values):.1%} of the weight, "
        f"{np.mean(values):.1%} on average over {len(known)} cells. The dotted marks show what "
        "equal weights would give them."
    )


def _heaviest(final: curves.FinalWeights) -> str:
    order = np.argsort(-final.mean)
    first = final.names[order[0]]
    light = int((final.mean < 0.5 / len(final.names)).sum())
    rest = (
        f" {light} of {len(final.names)} nodes got less than half an equal share." if light else ""
    )
    return f"{first} has the largest weight: {final.mean[order[0]]:.1%}.{rest}"


def accuracy_sentence(record: Record, label: str) -> str:
    """Say how accurate a method is, and compare it with the best alternative."""
    if record.kind == "fit":
        return _metrics(record)
    compared = gains(record, label)
    if len(record.cells) > 1:
        if compared:
            return _over_cells(record, label, compared)
        return "No cell has two methods to compare."
    own = _scores(record, record.cells[0], label)
    if not compared:
        return (
            f"{label} reaches a test accuracy of {_mean(own)}. No other method has the same seeds to "
            "compare it with."
        )
    closest = min(compared, key=lambda gain: gain.differences.mean())
    theirs = _scores(record, record.cells[0], closest.label)
    # The difference uses the seeds that both have. So do the two means, so that they agree with it.
    common = own.keys() & theirs.keys()
    partial = len(common) < max(len(own), len(theirs))
    prefix = f"On the {len(common)} seeds that both have, " if partial else ""
    band = closest.band
    assert band is not None
    sentence = (
        f"{prefix}{label} reaches a test accuracy of {_mean(own, common)}; the best alternative, "
        f"{closest.label}, {_mean(theirs, common)}. The difference is {signed(float(band.mean))}"
    )
    if band.low is not None and band.high is not None:
        low, high = signed(float(band.low)), signed(float(band.high))
        return f"{sentence} ({low} to {high}: {curves.interval_words(band.seeds)})."
    return f"{sentence}, from one seed: more seeds would show how certain that is."


def _mean(scores: Mapping[int, float], seeds: Collection[int] | None = None) -> str:
    values = [score for seed, score in scores.items() if seeds is None or seed in seeds]
    return entry(float(np.mean(values)), float(np.std(values, ddof=1)) if values[1:] else np.nan)


def _over_cells(record: Record, label: str, compared: list[Gain]) -> str:
    best, cells = 0, 0
    for cell in record.cells:
        means = _means(record, cell)
        if label in means and len(means) > 1:
            cells += 1
            best += means[label] == max(means.values())
    closest = min(compared, key=lambda gain: gain.differences.mean())
    return (
        f"{label} has the best mean test accuracy in {best} of {cells} cells. Against "
        f"{closest.label}, the closest alternative, it is {signed(float(closest.differences.mean()))} "
        f"on average ({signed(float(closest.differences.min()))} to "
        f"{signed(float(closest.differences.max()))} over cells)."
    )


def _metrics(record: Record) -> str:
    kind = "test" if "test" in record.metrics else "validation"
    scores = record.metrics[kind]
    written = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}"
        for name, value in scores.items()
        if name != "rows" and value is not None
    )
    warning = (
        ""
        if kind == "test"
        else " Validation scores flatter the model, because they chose it: use --test to measure it fairly."
    )
    return f"On {scores['rows']} {kind} rows: {written}.{warning}"


def cost_sentence(record: Record, label: str) -> str:
    """Say what a run of a method costs."""
    runs = [run for run in record.runs if run.label == label]

    def mean(name: str) -> float:
        return float(np.mean([run.total[name] for run in runs]))

    return (
        f"A run of {label} takes {mean('synchronizations'):,.0f} synchronizations, "
        f"{mean('bytes_up') / 1e6:,.2f} MB up and {mean('bytes_down') / 1e6:,.2f} MB down in total, and "
        f"{mean('seconds'):,.1f} s on the machine it ran on, including compilation and evaluation."
    )
