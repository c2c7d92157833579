"""What the SuperLink has written down becomes times and requests per synchronization."""

import json

import jax
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from benchmarks import wide
from benchmarks.federation import Timing, Visit, find_exchanges, read_visits, summarize
from fedkin.models.named import named_model
from fedkin.models.objective import Objective


def visit(path, begin, end, objects=0, size=0):
    return Visit(f"/v1/{path}", begin, end, size, 0, objects)


JOINING = [visit("runtime/dispatch", 0.0, 0.1, 3), visit("runtime/collect", 0.1, 0.9, 6)]
FIRST = [
    visit("runtime/dispatch", 1.0, 1.1, 9, 1_000_000),
    visit("fleet/fetch", 0.5, 1.1, 9),  # it began to wait before
    visit("fleet/fetch", 1.15, 4.0, 9),
    visit("fleet/deliver", 1.2, 1.3, 12, 1_000_000),
    visit("runtime/collect", 1.1, 1.5, 12),
]
SECOND = [
    visit("runtime/push-messages", 2.0, 2.1, 13),
    visit("runtime/pull-messages", 2.2, 2.3, 18),
    visit("runtime/pull-object", 2.3, 2.8, 18),
    visit("control/list-runs", 2.85, 2.9, 18),
]
VISITS = [*JOINING, *FIRST, *SECOND]


def test_an_exchange_ends_with_the_last_request_of_the_center_for_answers():
    assert find_exchanges(VISITS) == [(0.0, 0.9), (1.0, 1.5), (2.0, 2.8)]


def test_an_exchange_begins_with_the_first_of_several_pushes():
    """Large messages do not all go together."""
    pushes = [visit("runtime/dispatch", 3.0, 3.2), visit("runtime/dispatch", 3.2, 3.4)]
    visits = [*VISITS, *pushes, visit("runtime/collect", 3.5, 3.9)]
    assert find_exchanges(visits)[-1] == (3.0, 3.9)


def test_only_the_last_exchanges_count():
    found = summarize(VISITS, 2, Timing(4, None, 3.0, [], 0, {}, 0, 0, {}))
    assert found.seconds == pytest.approx([0.5, 0.8])
    assert found.median == pytest.approx(0.65)
    assert found.percentile == pytest.approx(0.77)
    assert found.requests == 7 / 2  # what began in the time from the first to the last
    assert found.objects == 6  # 18, without the 6 before
    assert found.megabytes == 1
    assert found.requests_by_path["fleet/fetch"] == 0.5


def test_what_the_superlink_writes_is_read(tmp_path):
    file = tmp_path / "traffic.jsonl"
    file.write_text("".join(json.dumps(vars(each)) + "\n" for each in VISITS))
    assert read_visits(file) == VISITS


def test_a_model_of_about_so_many_parameters_can_be_made(monkeypatch):
    monkeypatch.setenv(wide.PARAMETERS, "100000")
    model = named_model("benchmarks.wide:model", "classification", 10, (8, 8, 1))
    images = model.prepare(jax.numpy.zeros((2, 8, 8, 1), "uint8"))
    assert Objective.create(model, images).size == pytest.approx(100_000, rel=1e-3)
