"""`fedkin federation audit` from the command line."""

import json
import sys

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.cli import app as cli
from fedkin.flower.audit import ANSWERED, AuditLog, Entry


@pytest.fixture
def audit(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedkin", "federation", "audit", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return run


@pytest.fixture
def trial(tmp_path):
    """The directory of a federation in which two nodes have been asked."""
    for number, name in enumerate(("bern", "zurich")):
        log = AuditLog(tmp_path / "trial" / "nodes" / name / "state", 10**6)
        hour = f"2026-01-01T1{number}:00:00.000+00:00"
        log.write(
            Entry(time=hour, node=name, request="join", run="heart", rows=60, outcome=ANSWERED)
        )
        later = hour.replace(":00:00", ":30:00")
        refused = {"request": "exchange", "run": "lungs", "cause": "there is no task 'x'"}
        log.write(Entry(time=later, node=name, **refused))
    return tmp_path / "trial"


def test_it_shows_what_was_asked_and_what_became_of_it(audit, trial):
    code, out, _ = audit(trial)
    assert code == 0
    lines = out.splitlines()
    shown = [line.split()[2] for line in lines if line.startswith(" 2026")]
    assert shown == ["bern", "bern", "zurich", "zurich"]
    assert "refused: there is no task 'x'" in " ".join(out.split())
    assert lines[-1] == "4 requests: 2 answered, 2 refused"


@pytest.mark.parametrize(
    ("options", "requests", "shown"),
    [
        ([], 4, 4),
        (["--only", "bern"], 2, 2),
        (["--run", "hea"], 2, 2),
        (["--outcome", "refused"], 2, 2),
        (["--outcome", "ended"], 0, 0),
        (["--lines", "1"], 4, 1),
        (["--only", "zurich", "--outcome", "answered"], 1, 1),
    ],
)
def test_its_filters_go_together(audit, trial, options, requests, shown):
    code, out, _ = audit(trial, "--json", *options)
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "fedkin.federation.audit/1")
    assert (answer["requests"], len(answer["entries"])) == (requests, shown)
    assert sum(answer["outcomes"].values()) == requests
    assert audit(trial, *options)[0] == 0


def test_mistakes_end_with_a_sentence(audit, trial, tmp_path):
    (tmp_path / "a.csv").write_text("age,sick\n")
    for arguments, words in (
        ([], "Missing argument 'DIR'"),
        ([tmp_path / "nowhere"], "there is no directory"),
        ([tmp_path / "a.csv"], "there is no directory"),
        ([tmp_path], "has no audit log"),
        ([trial, "--only", "zuerich"], "did you mean"),
        ([trial, "--outcome", "refuse"], "is not one of 'answered', 'refused', 'ended'"),
        ([trial, "--lines", "0"], "0 must be at least 1"),
        ([trial, "--lines", "many"], "'many' is not a whole number"),
        ([trial, "--refused"], "No such option"),
    ):
        code, out, err = audit(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert words in err
        assert "Traceback" not in err
