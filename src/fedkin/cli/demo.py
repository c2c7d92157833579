"""`fedkin demo`: the main job on embedded data."""

import json as json_format
import shutil
from pathlib import Path
from typing import Any

from fedkin.cli.options import OutOption, SeedOption
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.progress import StudyDisplay
from fedkin.data.federated import FederatedData
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError
from fedkin.methods.registry import PAPER_METHODS
from fedkin.studies.config import StudyConfig
from fedkin.studies.store import Store
from fedkin.studies.study import carry_out
from fedkin.studies.study_file import check_study

SYNCHRONIZATIONS = 400
"""The budget of each method: by then the accuracy of Bi-level no longer rises."""


def demo(
    seed: SeedOption = 0,
    out: OutOption = Path("fedkin-demo"),
    json: JsonOption = False,
) -> None:
    """Learn the weights of 15 nodes with handwritten digits, 5 of which are like the owner's."""
    study = _study(seed)
    _remove_earlier_demo(out)
    Store(out).open(
        resume=True
    )  # a directory with other files is refused before anything is printed
    federation = sample_federation(
        load_images("digits"), paper_scenario("digits", 2), "minority", seed
    )
    if not json:
        _introduce(federation)
    with StudyDisplay(notes) as display:
        outcome = carry_out(study, out, resume=True, jobs=1, display=display)
    if outcome.failed:
        raise InputError(f"a run of the demo failed: {next(iter(outcome.failed.values()))}")
    # What draws the report takes a moment to load, and is not needed before.
    from fedkin.cli.report_summary import print_study, write_report

    record, page = write_report(out)
    if json:
        print_json(_answer(record, seed) | {"report": str(page)}, schema="demo/1")
    else:
        print_study(record, page)


def _study(seed: int) -> StudyConfig:
    content = {
        "dataset": "digits",
        "setting": 2,
        "method": list(PAPER_METHODS),
        "seed": seed,
        "model": "logistic",
        "synchronizations": SYNCHRONIZATIONS,
        "settings": {"preset": "automatic"},
    }
    return check_study(content, "the demo")


def _remove_earlier_demo(out: Path) -> None:
    """Remove the runs of an earlier demo, so that this one runs; touch nothing else."""
    try:
        content = json_format.loads((out / "study.json").read_text(encoding="utf-8"))["study"]
        earlier = StudyConfig.from_record(content)
        # Earlier versions ran the methods in another order.
        ordered = earlier.model_copy(update={"method": list(PAPER_METHODS)})
        same_methods = sorted(earlier.method) == sorted(PAPER_METHODS)
        is_demo = same_methods and ordered == _study(earlier.seed[0])
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return
    if not is_demo:
        raise InputError(f"{out} holds a study of yours: choose another directory with --out")
    shutil.rmtree(out / "runs", ignore_errors=True)


def _introduce(federation: FederatedData) -> None:
    results.print(
        f"The owner has {len(federation.validation[1])} labeled images of digits: too few to learn "
        f"from alone.\n{len(federation.nodes)} nodes have {len(federation.nodes[0][1])} each, but "
        f"{federation.similar.count(False)} of them differ from the owner: their mix of digits is "
        "different, and the labels 0, 1, 2 and 5 are swapped.\nThe owner does not know which nodes "
        "differ. It learns the weights from its own data.\n"
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
            for method in PAPER_METHODS
        },
    }
