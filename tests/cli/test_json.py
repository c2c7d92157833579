"""docs/json.md against what the commands print."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from fedkin.cli.federation import down, register, stop, unregister, up
from fedkin.cli.output import print_json
from fedkin.flower.internals.control import RunStatus
from fedkin.flower.layout import SUPERLINK, Layout

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def documented() -> dict[str, set[str]]:
    """Return the fields of each schema on the page."""
    _, *parts = re.split(r"^## (\S+)$", PAGE.read_text(), flags=re.MULTILINE)
    fields = [set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) for text in parts[1::2]]
    return dict(zip(parts[::2], fields, strict=True))


def checked(answer) -> dict:
    """Return the JSON of a command whose fields are those of the page."""
    assert answer.status == 0, answer.err
    content = json.loads(answer.out)
    assert set(content) - {"schema"} == documented()[content["schema"]]
    return content


@pytest.fixture
def tables(tmp_path):
    for number, name in enumerate(("a", "b", "own")):
        x = pd.Series(range(40)) * (1 + number) % 17
        table = pd.DataFrame({"x": x, "y": ["no" if value < 8 else "yes" for value in x]})
        table.to_csv(tmp_path / f"{name}.csv", index=False)


def test_fit_predict_and_report(command, tables):
    fit = ["fit", "--node", "a.csv", "--node", "b.csv", "--validation", "own.csv", "--label", "y"]
    fitted = checked(command(*fit, "--method", "local", "--out", "r", "--json"))
    assert fitted["schema"] == "fedkin.fit/1"
    assert isinstance(fitted["stopped"], str)
    predicted = checked(command("predict", "r", "own.csv", "--json"))
    assert predicted["schema"] == "fedkin.predict/1"
    assert set(predicted["predictions"][0]) == {
        "row",
        "prediction",
        "probability_no",
        "probability_yes",
    }
    assert checked(command("report", "r", "--json"))["schema"] == "fedkin.report/1"


def test_advise(command, tables):
    options = ["advise", "--node", "a.csv", "--node", "b.csv", "--own", "own.csv", "--label", "y"]
    printed = checked(command(*options, "--repeats", 1, "--folds", 2, "--json"))
    assert printed["schema"] == "fedkin.advise/1"
    assert set(printed["weights"][0]) == {
        "node",
        "rows",
        "weight",
        "low",
        "high",
        "at_cap",
        "share",
    }


def test_studies(command, tmp_path):
    (tmp_path / "study.toml").write_text(
        'dataset = "digits"\nsetting = 2\nmethod = ["local"]\nmodel = "logistic"\nsteps = 1\n'
        "test_size = 50\ntrain_size = 30\n[settings]\nrounds = 2\n"
    )
    ran = checked(command("run", "study.toml", "--out", "out", "--json"))
    assert ran["schema"] == "fedkin.study/1"
    options = ["--dataset", "digits", "--setting", 2, "--target", "minority", "--method", "local"]
    options += ["--seeds", 1, "--synchronizations", 1, "--out", "paper"]
    reproduced = checked(command("reproduce", *options, "--json"))
    assert reproduced["schema"] == "fedkin.study/1"
    fields = {"dataset", "setting", "target", "method", "seed", "parameters"}
    fields |= {"validation_accuracy", "test_accuracy"}
    assert set(reproduced["runs"][0]) == set(ran["runs"][0]) == fields


def test_data(command):
    listed = checked(command("data", "--json"))
    assert listed["schema"] == "fedkin.data/1"
    shown = checked(command("data", "show", "digits", "--setting", 2, "--json"))
    assert shown["schema"] == "fedkin.data.show/1"
    partition = ["--partition", "pathological", "--classes-per-node", 2, "--nodes", 5]
    divided = checked(command("data", "show", "digits", *partition, "--json"))
    assert divided["schema"] == "fedkin.data.partition/1"


class Link:
    """A SuperLink that is reached without a network."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def nodes(self):
        return [type("Node", (), {"name": "basel", "node_id": 1})]

    def register(self, name, public_key):
        return 2

    def unregister(self, node_id):
        assert node_id == 1

    def runs_under_way(self):
        return [RunStatus(7, "/results/heart", False, "", "", 0)]

    def stop_run(self, number):
        assert number == 7


def test_federation(command, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="needs the extra flower")
    seen = set()

    def check(*arguments):
        content = checked(command("federation", *arguments, "--json"))
        assert content["schema"] == f"fedkin.federation.{arguments[0]}/1"
        seen.add(content["schema"])
        return content

    check("init", "trial", "--nodes", 2)
    check("status", "trial")
    assert check("down", "trial")["stopped_processes"] == []
    check("renew", "trial")
    check("key", "node.key")
    log = Layout(tmp_path / "trial").log(SUPERLINK)
    log.parent.mkdir()
    log.write_text("\x1b[92mINFO\x1b[0m : ready\n")
    assert check("logs", "trial")["lines"] == ["INFO : ready"]
    monkeypatch.setattr(up.trial, "up", lambda layout, _: {SUPERLINK: 1})
    check("up", "trial")
    monkeypatch.setattr(down.trial, "down", lambda layout: ["basel", SUPERLINK])
    assert check("down", "trial")["stopped_processes"] == ["basel", SUPERLINK]
    for module in (register, stop, unregister):
        monkeypatch.setattr(module.trial, "connect", lambda layout: Link())
    check("register", "trial", "bern", "node.key.pub")
    check("unregister", "trial", "basel")
    assert check("stop", "trial")["stopped"] == [{"run": "7", "out": "/results/heart"}]
    seen.add("fedkin.federation.audit/1")  # test_federation_audit.py has it
    assert seen == {name for name in documented() if name.startswith("fedkin.federation.")}


def test_numbers_that_json_has_no_form_for_are_null(capsys):
    print_json({"a": float("nan"), "b": [1.0, float("inf")]}, schema="fit/1")
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert content == {"schema": "fedkin.fit/1", "a": None, "b": [1.0, None]}
