"""Studies and results that are under way, by their events alone."""

from fedkin.events import RunStarted, StepDone, append_event, events_beside
from fedkin.studies.store import RunDirectory, Store

NODES = ("north", "south", "<script>alert(1)</script>")


def started(run="", **changes):
    plan = {"method": "bilevel", "nodes": NODES, "most_steps": 20, "most_synchronizations": 400}
    return RunStarted(run=run, **(plan | changes))


def step(number, run="", **changes):
    share = number / 20
    weights = (0.4 + 0.3 * share, 0.3 - 0.1 * share, 0.3 - 0.2 * share)
    scores = {
        "synchronizations": 10 * number,
        "seconds": 2.0 * number,
        "bytes_up": 1000 * number,
        "bytes_down": 2000 * number,
        "validation_loss": 1 / number,
        "validation_accuracy": 0.5 + 0.4 * share,
        "test_accuracy": 0.5 + 0.3 * share,
        "weights": weights,
    }
    return StepDone(run=run, step=number, **(scores | changes))


def begin_study(path, config):
    """Make a store in which no run has begun."""
    store = Store(path)
    store.open(resume=False)
    store.write_study(config)
    return store


def begin_run(store, run, steps=5, **changes):
    """Let a run take its first steps."""
    directory = RunDirectory(store.runs, run)
    directory.create()
    directory.record(started(run.directory, method=run.method))
    for number in range(1, steps + 1):
        directory.record(step(number, run.directory, **changes))
    return directory


def begin_fit(out, *events):
    for event in events or (started(), step(1), step(2)):
        append_event(events_beside(out), event)
