"""What a node's owner allows at most: more is refused, and nothing is forgotten by a restart."""

import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from attacks.victim import Center, RefusedByNodeError, agreed, make_table
from fedkin.cli.federation import node as node_command
from fedkin.errors import InputError
from fedkin.flower import node as node_module
from fedkin.flower import owner_limits, time_limit
from fedkin.flower.audit import BEFORE, ENDED, NEWEST, AuditLog, Entry, audit_logs, read_entries
from fedkin.flower.node import SEE_LOG
from fedkin.flower.node_memory import SlotMemory, Snapshots, prune_snapshots
from fedkin.flower.node_settings import node_settings
from fedkin.flower.owner_limits import AT_A_TIME, OwnerLimits, Usage
from fedkin.flower.time_limit import OVERDUE_STATUS, end_if_overdue, limited_time
from fedkin.flower.wire import Refusal, RefusedError
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT, SLOPE
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.pfedme.node import PFEDME_ROUND


@pytest.fixture
def settings(tmp_path):
    make_table(tmp_path / "table.csv")
    state = tmp_path / "state"
    yield {
        "name": "hospital",
        "data": str(tmp_path / "table.csv"),
        "label": "outcome",
        "plain-sums": True,
        "state": str(state),
    }
    node_module._USAGE.pop(state, None)


def joined(settings):
    center = Center(settings)
    center.preprocessing = agreed(center.describe())
    center.join(center.preprocessing)
    return center


def above(limit, ask):
    with pytest.raises(RefusedByNodeError) as caught:
        ask()
    assert caught.value.code == Refusal.LIMIT
    assert f"({limit})" in caught.value.reason


def restart(settings):
    """Let a node forget what is only in its memory."""
    node_module._USAGE.pop(Path(settings["state"]), None)


def zero(center, *names):
    return dict.fromkeys(names, np.zeros(center.size))


def test_joins_are_counted_within_a_day_and_over_restarts(settings, monkeypatch):
    center = joined(settings | {"joins-per-day": 3})
    center.join(center.preprocessing)
    restart(settings)
    center.join(center.preprocessing)
    above("joins-per-day", lambda: center.join(center.preprocessing))
    later = owner_limits.time.time() + owner_limits.DAY + 1
    monkeypatch.setattr(owner_limits.time, "time", lambda: later)
    center.join(center.preprocessing)


def test_requests_of_a_run_are_counted_over_restarts_and_attempts(settings):
    center = joined(settings | {"requests-per-run": AT_A_TIME + 1})
    ask = zero(center, "vector", "theta")
    for _ in range(2):
        center.ask(SLOPE, ask)
    restart(settings)  # what was written down ahead counts as asked
    center.join(center.preprocessing)
    above("requests-per-run", lambda: center.ask(SLOPE, ask))
    center.join(center.preprocessing, run="another run")
    center.ask(SLOPE, ask)


def test_requests_are_not_written_down_one_by_one(tmp_path, monkeypatch):
    written = []
    usage = Usage(tmp_path)
    write = usage._write
    monkeypatch.setattr(usage, "_write", lambda: (written.append(1), write()))
    for _ in range(250):
        usage.count_requests("a", 1, OwnerLimits())
    assert len(written) == 3
    content = json.loads((tmp_path / "usage.json").read_text())
    assert 250 <= content["runs"]["a"] <= 250 + AT_A_TIME
    assert stat.S_IMODE((tmp_path / "usage.json").stat().st_mode) == 0o600
    with pytest.raises(RefusedError, match="requests-per-run"):
        Usage(tmp_path).count_requests("a", 100, OwnerLimits(requests_per_run=260))


def test_the_oldest_runs_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(owner_limits, "MOST_RUNS_COUNTED", 3)
    usage = Usage(tmp_path)
    for number in range(5):
        usage.count_requests(f"run {number}", 1, OwnerLimits())
    kept = json.loads((tmp_path / "usage.json").read_text())["runs"]
    assert list(kept) == ["run 2", "run 3", "run 4"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"joins": 1, "runs": {}}', '{"joins": [], "runs": 1}']
)
def test_counts_that_cannot_be_read_are_not_zero(settings, content):
    center = joined(settings)
    restart(settings)
    Path(settings["state"], "usage.json").write_text(content)
    with pytest.raises(RefusedByNodeError, match="owner's log"):
        center.join(center.preprocessing)


def test_steps_and_norms_have_limits(settings):
    center = joined(settings | {"steps-per-request": 50, "largest-norm": 2.0})
    center.ask(DESCENT_ROUND, zero(center, "point"), steps=50)
    above("steps-per-request", lambda: center.ask(DESCENT_ROUND, zero(center, "point"), steps=51))
    shared = zero(center, "shared")
    above("steps-per-request", lambda: center.ask(PFEDME_ROUND, shared, steps=8, iterations=7))
    unit = np.eye(1, center.size)[0]
    center.ask(SLOPE, {"theta": 2 * unit, "vector": unit})
    above("largest-norm", lambda: center.ask(SLOPE, {"theta": 2.01 * unit, "vector": unit}))
    above("largest-norm", lambda: center.ask(DESCENT_ROUND, {"point": 1e30 * unit}))
    # The answer is proportional to a direction, so that its length tells nobody more.
    once = center.ask(HESSIAN_PRODUCT, {"theta": unit, "vector": unit}).vectors["product"]
    long = center.ask(HESSIAN_PRODUCT, {"theta": unit, "vector": 1e6 * unit}).vectors["product"]
    np.testing.assert_allclose(long, 1e6 * once, rtol=1e-4, atol=1.0)


def test_models_have_a_limit(settings):
    center = joined(settings | {"models-at-once": 2})
    with pytest.raises(RefusedByNodeError, match="models-at-once"):
        center.send(
            {
                "kind": "exchange",
                "attempt": "1",
                "step": 0,
                "key": "0" * 16,
                "requests": "a",
                "a.task": "node_size",
                "a.form": "numbers",
                "a.models": "0,1,2",
            }
        )


def test_old_runs_are_removed_from_the_disk(tmp_path):
    for number in range(5):
        slots = SlotMemory({"slot/inner/0": np.zeros(3)}, {"inner/0": 1})
        for step in range(2):
            Snapshots(tmp_path, f"run {number}").save(slots, step)
        for path in tmp_path.glob("run-*.npz"):  # older than those that follow
            times = path.stat().st_mtime - 10
            os.utime(path, (times, times))
    prune_snapshots(tmp_path, 2)
    assert len(list(tmp_path.glob("run-*.npz"))) == 4
    for number in range(5):
        assert (Snapshots(tmp_path, f"run {number}").load(9) is not None) == (number >= 3)


# The time limit


def test_a_worker_that_takes_too_long_writes_it_down_and_ends(tmp_path, monkeypatch):
    ended = []
    entry, log = Entry(request="exchange", run="a run"), AuditLog(tmp_path, 10**6)
    end_if_overdue(ended.append)  # nothing is being answered
    with limited_time(entry, log, 60.0):
        end_if_overdue(ended.append)
        assert not ended
        now = time_limit.time.monotonic()
        monkeypatch.setattr(time_limit.time, "monotonic", lambda: now + 61)
        end_if_overdue(ended.append)
    assert ended == [OVERDUE_STATUS]
    (line,) = read_entries(tmp_path)
    assert (line["outcome"], line["run"]) == (ENDED, "a run")
    assert line["seconds"] >= 61
    end_if_overdue(ended.append)
    assert len(ended) == 1


# The audit log


def test_every_request_leaves_a_line_without_data(settings):
    center = joined(settings)
    ask = zero(center, "vector", "theta")
    center.ask(SLOPE, ask)
    center.ask(DESCENT_ROUND, zero(center, "point"))
    with pytest.raises(RefusedByNodeError):
        center.ask(SLOPE, {"vector": ask["vector"], "theta": np.full(center.size, np.nan)})
    with pytest.raises(RefusedByNodeError):
        center.join(center.preprocessing | {"missing_codes": {"age": 50.0}})
    lines = list(read_entries(Path(settings["state"])))
    assert [line["request"] for line in lines] == ["describe", "join", *["exchange"] * 3, "join"]
    assert [line["rows"] for line in lines] == [60, 60, 60, 30, 0, 0]
    assert [line["tasks"] for line in lines[2:4]] == [["slope"], ["descent_round"]]
    assert [line["outcome"] for line in lines] == ["answered"] * 4 + ["refused"] * 2
    assert lines[4]["cause"].endswith("not finite")
    assert "50" not in lines[5]["cause"]
    assert {line["run"] for line in lines[1:]} == {"a run"}
    assert {line["node"] for line in lines} == {"hospital"}


def test_what_steers_a_terminal_is_not_written_down(settings):
    center = joined(settings)
    center.join(center.preprocessing, run="\x1b[2J\x9b31m\nred")
    with pytest.raises(RefusedByNodeError):
        center.send({"kind": "\x1b]0;title\x07"})
    text = Path(settings["state"], NEWEST).read_text()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert [line["run"] for line in read_entries(Path(settings["state"]))][-2] == "?[2J?31m?red"


def test_the_log_has_a_bounded_size_and_keeps_the_newest(tmp_path):
    log = AuditLog(tmp_path, 20_000)
    for number in range(500):
        log.write(Entry(run=f"run {number}"))
    runs = [line["run"] for line in read_entries(tmp_path)]
    assert runs == [f"run {number}" for number in range(500 - len(runs), 500)]
    assert len(runs) > 30
    files = [tmp_path / NEWEST, tmp_path / BEFORE]
    assert sum(path.stat().st_size for path in files if path.exists()) < 20_000 + 500
    assert {stat.S_IMODE(path.stat().st_mode) for path in files if path.exists()} == {0o600}


def test_what_cannot_be_written_down_is_not_answered(settings, monkeypatch):
    center = joined(settings)

    def fail(self, entry):
        raise InputError("no space left")

    monkeypatch.setattr(AuditLog, "write", fail)
    with pytest.raises(RefusedByNodeError) as caught:
        center.ask(SLOPE, zero(center, "vector", "theta"))
    assert caught.value.reason == SEE_LOG


@pytest.mark.parametrize("line", ["", "{}", "[]", "not JSON", '{"time": 1}', "[" * 5000])
def test_a_damaged_log_says_where(tmp_path, line):
    log = AuditLog(tmp_path, 10**6)
    log.write(Entry())
    with (tmp_path / NEWEST).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=f"{NEWEST}, line 2 is not an entry"):
        list(read_entries(tmp_path))


def test_logs_are_found_from_several_places(tmp_path):
    for place in ("a/state", "b/state"):
        AuditLog(tmp_path / "trial" / "nodes" / place, 10**6).write(Entry())
    AuditLog(tmp_path / "node" / "memory", 10**6).write(Entry())
    assert len(audit_logs(tmp_path / "trial")) == 2
    for place in ("node", "node/memory", "trial/nodes/a"):
        assert len(audit_logs(tmp_path / place)) == 1
    for place in ("nowhere", "trial/nodes"):
        with pytest.raises(InputError, match=r"no audit log|no directory"):
            audit_logs(tmp_path / place)


# Settings


def test_a_node_needs_a_directory_unless_the_center_may_decide_what_is_drawn(settings):
    less = {name: value for name, value in settings.items() if name != "state"}
    with pytest.raises(InputError, match=r"secret.*\(state\)"):
        node_settings(less)
    assert node_settings(less | {"reproducible": True}).reproducible


def test_the_command_line_says_what_the_defaults_are():
    source = Path(node_command.__file__).read_text(encoding="utf-8")
    for name, field in OwnerLimits.model_fields.items():
        if field.default in (None, False):
            continue
        option = source[source.index(f'"--{name.replace("_", "-")}"') :]
        default = re.search(r"\(default: ([0-9,]+)\)", option)
        assert default is not None
        assert float(default[1].replace(",", "")) == field.default
