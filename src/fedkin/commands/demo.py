"""`fedkin demo`: the main job on embedded data."""

import time
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import fedkin
from fedkin.commands.output import JsonOption, notes, print_json, results
from fedkin.data.digits import DigitsFederation, digits_federation
from fedkin.experiments.runner import Evaluation
from fedkin.result import Result

METHODS = {"bilevel": "Bi-level", "fedavg": "FedAvg", "local": "Local-train"}
BAR_WIDTH = 40


def demo(
    seed: Annotated[int, typer.Option(help="Decides the data and everything drawn from them.")] = 0,
    json: JsonOption = False,
) -> None:
    """Learn with whom to learn, on handwritten digits: 15 nodes, 5 of them like the owner."""
    federation = digits_federation(seed)
    if not json:
        results.print(
            "The owner holds 100 labelled images of digits, too few to learn from alone. 15 nodes "
            "offer 80 images each,\nbut 10 of them use other names for the digits 0, 1, 2 and 5. "
            "Nobody tells the owner which.\n"
        )
    outcomes = {}
    for method, title in METHODS.items():
        outcomes[method] = _run(method, title, federation, seed)
    if json:
        print_json(_answer(outcomes, federation, seed))
    else:
        _print_comparison(outcomes)
        _print_weights(outcomes["bilevel"][0], federation)


def _run(
    method: str, title: str, federation: DigitsFederation, seed: int
) -> tuple[Result, float]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    begin = time.perf_counter()
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task(f"{title}: compiling")

        def show(evaluation: Evaluation) -> None:
            progress.update(
                task,
                description=f"{title}: step {evaluation.step}, validation accuracy "
                f"{evaluation.validation.accuracy:.3f}",
            )

        result = fedkin.fit(
            federation.nodes,
            federation.validation,
            test=federation.test,
            method=method,
            seed=seed,
            on_step=show,
        )
    return result, time.perf_counter() - begin


def _test_accuracy(result: Result, federation: DigitsFederation) -> float:
    inputs, labels = federation.test
    return float((result.predict(inputs) == labels).mean())


def _similar_weight(result: Result, federation: DigitsFederation) -> float:
    weights = result.weights or {}
    return sum(weight for name, weight in weights.items() if federation.similar[name])


def _answer(
    outcomes: dict[str, tuple[Result, float]], federation: DigitsFederation, seed: int
) -> dict[str, Any]:
    return {
        "seed": seed,
        "similar": federation.similar,
        "methods": {
            method: {
                "test_accuracy": _test_accuracy(result, federation),
                "synchronizations": result.cost.synchronizations,
                "bytes_up": result.cost.bytes_up,
                "bytes_down": result.cost.bytes_down,
                "seconds": seconds,
                "stopped": result.stopped,
                "weights": result.weights,
            }
            for method, (result, seconds) in outcomes.items()
        },
        "similar_weight": _similar_weight(outcomes["bilevel"][0], federation),
    }
