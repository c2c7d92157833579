"""`fedkin demo`: the main job on embedded data."""

import json as json_format
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.study_display import StudyDisplay
from fedkin.data.federated import FederatedData
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError
from fedkin.studies.config import StudyConfig, check_study
from fedkin.studies.study import carry_out

METHODS = ("bilevel", "fedavg", "ditto", "pfedme", "local")
SYNCHRONIZATIONS = 400
"""The budget of each method: by then Bi-level's accuracy no longer rises."""


def demo(
    seed: Annotated[
        int, typer.Option(min=0, help="Decides the data and everything that is drawn.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="The directory for the results.")] = Path("fedkin-demo"),
    json: JsonOption = False,
) -> None:
    """Learn with whom to learn, on handwritten digits: 15 nodes, 5 of them like the owner."""
    study = _study(seed)
    _make_way(out)
    federation = sample_federation(
        load_images("digits"), paper_scenario("digits", 2), "minority", seed
    )
    if not json:
        _introduce(federation)
    with StudyDisplay(notes) as display:
        outcome = carry_out(study, out, resume=True, jobs=1, display=display)
    if outcome.failed:
        raise InputError(f"a run of the demo failed: {next(iter(outcome.failed.values()))}")
    # What makes the report takes a moment to load, and is not needed before.
    from fedkin.cli.endings import print_study, write_report

    record, page = write_report(out)
    if json:
        print_json(_answer(record, seed) | {"report": str(page)})
    else:
        print_study(record, page)


def _study(seed: int) -> StudyConfig:
    content = {
        "dataset": "digits",
        "setting": 2,
        "method": list(METHODS),
        "seed": seed,
        "model": "logistic",
        "synchronizations": SYNCHRONIZATIONS,
        "settings": {"preset": "automatic"},
    }
    return check_study(content, "the demo")


def _make_way(out: Path) -> None:
    """Remove the runs of an earlier demo, so that this one does its work; touch nothing else."""
    try:
        earlier = json_format.loads((out / "study.json").read_text(encoding="utf-8"))["study"]
        seeds = earlier["seed"]
        is_demo = len(seeds) == 1 and earlier == _study(seeds[0]).model_dump(mode="json")
    except (OSError, ValueError, KeyError, TypeError):
        return
    if not is_demo:
        raise InputError(
            f"{out} holds a study of yours: give the demo another directory with --out"
        )
    shutil.rmtree(out / "runs", ignore_errors=True)


def _introduce(federation: FederatedData) -> None:
    results.print(
        f"The owner has {len(federation.validation[1])} labeled images of digits: too few to "
        f"learn from alone.\n{len(federation.nodes)} nodes offer {len(federation.nodes[0][1])} "
        f"each, but {federation.similar.count(False)} of them see other digits more often, and "
        "call 0, 1, 2 and 5 by other names.\nNobody tells the owner which. It learns the weights "
        "from its own data.\n"
    )


def _answer(record: Any, seed: int) -> dict[str, Any]:
    runs = {run.method: run for run in record.runs}
    learned = runs["bilevel"]
    similar = learned.similar
    return {
        "seed": seed,
        "similar": similar,
        "similar_weight": sum(w for node, w in learned.weights.items() if similar[node]),
        "methods": {
            method: {
                "test_accuracy": runs[method].outcome["test_accuracy"],
                "synchronizations": int(runs[method].total.synchronizations),
                "bytes_up": int(runs[method].total.bytes_up),
                "bytes_down": int(runs[method].total.bytes_down),
                "seconds": float(runs[method].total.seconds),
                "stopped": runs[method].outcome["stopped"],
                "warnings": runs[method].outcome["warnings"],
                "weights": runs[method].weights,
            }
            for method in METHODS
        },
    }
