"""`fedkin report`, and how demo, fit and run end, as a user sees them."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from fedkin.cli import app as cli
from fedkin.cli import demo as demo_command
from fedkin.errors import FedkinError
from fedkin.studies.store import Store
from stores import invent_run, invent_study, study

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path):
    """Run the command line in a directory of its own; return status, output and notes."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return run


def test_report_writes_page_tables_and_figures(fedkin, tmp_path):
    invent_study(tmp_path / "out", study(seed=[0, 1]))
    status, out, err = fedkin("report", "out")
    assert (status, err) == (0, "")
    assert "out/report.html" in out
    names = {path.name for path in (tmp_path / "out" / "report").iterdir()}
    assert {
        "table.md",
        "table.csv",
        "table.tex",
        "weights-final.svg",
        "accuracy-bytes-up.pdf",
    } <= names
    assert len(names) == 21


def test_report_json_is_one_object_and_out_leaves_the_study_alone(fedkin, tmp_path):
    store = invent_study(tmp_path / "out", study(seed=[0]))
    before = sorted(store.path.rglob("*"))
    status, out, _ = fedkin("report", "out", "--out", "elsewhere/deep", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["report"] == "elsewhere/deep/report.html"
    assert all((tmp_path / file).is_file() for file in [*answer["files"], answer["report"]])
    assert (answer["finished"], answer["missing"]) == (5, [])
    assert sorted(store.path.rglob("*")) == before


def test_report_of_a_partial_study_names_what_is_missing(fedkin, tmp_path):
    config = study(seed=[0, 1], method=["bilevel", "fedavg"])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    invent_run(store, config.runs()[0])
    status, out, err = fedkin("report", "out")
    assert status == 0
    assert "3 of 4 runs are missing" in err
    assert "mnist, setting 2, target minority, fedavg, seed 1: not begun" in err
    assert "report.html" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["file.csv"], "file.csv is a file"),
        (["."], "has no results"),
        (["damaged"], "damaged"),
        (["empty"], "no finished run"),
        (["good", "--out", "file.csv"], "cannot make file.csv"),
    ],
)
def test_mistakes_end_in_one_line(fedkin, tmp_path, arguments, message):
    (tmp_path / "file.csv").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{")
    empty = Store(tmp_path / "empty")
    empty.open(resume=False)
    empty.write_study(study())
    invent_study(tmp_path / "good", study(seed=[0], method="fedavg"))
    status, out, err = fedkin("report", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_fit_ends_with_its_report(fedkin, tmp_path):
    for number, name in enumerate(("a", "b", "own")):
        x = pd.Series(range(40)) * (1 + number) % 17
        table = pd.DataFrame({"x": x, "y": ["no" if value < 8 else "yes" for value in x]})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    fit = ("fit", "--node", f"{EVIL}=a.csv", "--node", "b.csv", "--validation", "own.csv")
    status, out, err = fedkin(*fit, "--label", "y", "--out", "result")
    assert (status, err) == (0, "")
    assert out.endswith("report: result/report.html\n")
    page = (tmp_path / "result" / "report.html").read_text()
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    metrics = json.loads((tmp_path / "result" / "metrics.json").read_text())
    assert f"{metrics['validation']['accuracy']:.3f}" in page
    assert fedkin("report", "result")[0] == 0
    assert fedkin(*fit, "--label", "y", "--out", "result", "--force", "--json")[0] == 0


def test_a_study_ends_with_table_bars_and_report(fedkin, tmp_path):
    (tmp_path / "study.toml").write_text(
        'dataset = "digits"\nsetting = 2\nmethod = ["bilevel", "local"]\nmodel = "logistic"\n'
        "steps = 2\ntest_size = 50\ntrain_size = 30\n[settings]\npreset = 'automatic'\nrounds = 2\n"
    )
    status, out, _ = fedkin("run", "study.toml", "--out", "out")
    assert status == 0
    assert "\x1b" not in out  # plain where there is no terminal
    for part in ("Bi-level", "Local-train", "test accuracy", "minority-1", "█", "out/report.html"):
        assert part in out
    status, out, _ = fedkin("run", "study.toml", "--out", "out", "--resume", "--json")
    assert json.loads(out)["report"] == "out/report.html"


def test_the_demo_replaces_only_its_own_runs(tmp_path, monkeypatch):
    """What `_remove_earlier_demo` removes decides whether somebody loses work."""
    earlier = Store(tmp_path / "demo")
    earlier.open(resume=False)
    earlier.write_study(demo_command._study(3))
    (earlier.runs / "run").mkdir()
    (earlier.path / "notes.txt").write_text("mine")
    demo_command._remove_earlier_demo(earlier.path)
    assert not (earlier.runs / "run").exists()
    assert (earlier.path / "notes.txt").exists()
    other = Store(tmp_path / "other")
    other.open(resume=False)
    other.write_study(study())
    (other.runs / "run").mkdir()
    with pytest.raises(FedkinError, match="a study of yours"):
        demo_command._remove_earlier_demo(other.path)
    assert (other.runs / "run").exists()


def test_the_command_line_starts_without_what_draws():
    script = "import sys, fedkin.cli.app; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stderr
