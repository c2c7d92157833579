"""`fedkin demo`: the main job on embedded data."""

import time
from typing import Annotated, Any, NamedTuple

import typer

import fedkin
from fedkin.commands.output import JsonOption, notes, print_json, results
from fedkin.commands.progress import live_progress
from fedkin.commands.tables import method_table, weight_bars
from fedkin.data.federated import FederatedData
from fedkin.data.settings import paper_setting, sample_federation
from fedkin.data.sources import load_images
from fedkin.result import Result

METHODS = {"bilevel": "Bi-level", "fedavg": "FedAvg", "local": "Local-train"}


class Outcome(NamedTuple):
    """What one method has brought."""

    result: Result
    seconds: float
    test_accuracy: float


def demo(
    seed: Annotated[
        int, typer.Option(min=0, help="Decides the data and everything that is drawn.")
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Learn with whom to learn, on handwritten digits: 15 nodes, 5 of them like the owner."""
    federation = sample_federation(
        load_images("digits"), paper_setting("digits", 2), "minority", seed
    )
    if not json:
        results.print(
            f"The owner has {len(federation.validation[1])} labelled images of digits: too few to "
            f"learn from alone.\n{len(federation.nodes)} nodes offer {len(federation.nodes[0][1])} "
            f"each, but {federation.similar.count(False)} of them see other digits more often, and "
            "call 0, 1, 2 and 5 by other names.\nNobody tells the owner which. It learns the weights "
            "from its own data.\n"
        )
    outcomes = {method: _run(method, federation, seed) for method in METHODS}
    if json:
        print_json(_answer(outcomes, federation, seed))
        return
    results.print(
        method_table(
            {
                METHODS[method]: (outcome.test_accuracy, outcome.result.cost, outcome.seconds)
                for method, outcome in outcomes.items()
            }
        )
    )
    weights = outcomes["bilevel"].result.weights or {}
    similar = dict(zip(federation.names, federation.similar, strict=True))
    results.print("\nWhom to learn with, and how much (Bi-level):\n")
    results.print(weight_bars(weights, similar))
    share = _similar_weight(outcomes["bilevel"].result, federation)
    results.print(
        f"\nThe nodes that are like the owner got {share:.1%} of the weight. "
        f"{outcomes['bilevel'].result.stopped.capitalize()}."
    )


def _run(method: str, federation: FederatedData, seed: int) -> Outcome:
    begin = time.perf_counter()
    with live_progress(METHODS[method], notes) as show:
        result = fedkin.fit(
            dict(zip(federation.names, federation.nodes, strict=True)),
            federation.validation,
            test=federation.test,
            classes=len(federation.classes),
            method=method,
            seed=seed,
            on_step=show,
        )
    inputs, labels = federation.test
    accuracy = float((result.predict(inputs) == labels).mean())
    return Outcome(result, time.perf_counter() - begin, accuracy)


def _similar_weight(result: Result, federation: FederatedData) -> float:
    weights = result.weights or {}
    alike = zip(federation.names, federation.similar, strict=True)
    return sum(weights.get(name, 0.0) for name, similar in alike if similar)


def _answer(outcomes: dict[str, Outcome], federation: FederatedData, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "similar": dict(zip(federation.names, federation.similar, strict=True)),
        "similar_weight": _similar_weight(outcomes["bilevel"].result, federation),
        "methods": {
            method: {
                "test_accuracy": outcome.test_accuracy,
                "synchronizations": outcome.result.cost.synchronizations,
                "bytes_up": outcome.result.cost.bytes_up,
                "bytes_down": outcome.result.cost.bytes_down,
                "seconds": outcome.seconds,
                "stopped": outcome.result.stopped,
                "warnings": outcome.result.warnings,
                "weights": outcome.result.weights,
            }
            for method, outcome in outcomes.items()
        },
    }
