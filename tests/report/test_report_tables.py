"""The table of a study against what is in its files, computed here by other means."""

import csv
import hashlib
import io
import json
import math
import statistics
from dataclasses import replace

import pytest

from fedkin.errors import InputError
from fedkin.report import findings, html, tables
from fedkin.report.reading import read_record
from fedkin.studies.config import with_settings
from fedkin.studies.store import Store
from stores import accuracies_on_disk, fail_run, invent_run, invent_study, study


def test_the_table_is_what_the_files_say(tmp_path):
    config = study(setting=[1, 3], target=["minority", "majority"], seed=[0, 1, 2])
    invent_study(tmp_path / "out", config)
    record = read_record(tmp_path / "out")
    table = tables.summary(record)
    truth = accuracies_on_disk(tmp_path / "out")
    assert len(table) == len(truth) == 20
    for row in table.itertuples():
        values = truth[row.dataset, row.setting, row.target, record.labels[row.method]]
        assert row.accuracy == pytest.approx(statistics.mean(values), abs=1e-12)
        assert row.deviation == pytest.approx(statistics.stdev(values), abs=1e-12)
        rivals = [
            statistics.mean(other)
            for key, other in truth.items()
            if key[:3] == (row.dataset, row.setting, row.target)
        ]
        assert row.best == (statistics.mean(values) == pytest.approx(max(rivals), abs=1e-12))


def test_every_form_of_the_table_shows_the_same_numbers(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0, 1]))
    table = tables.summary(read_record(tmp_path / "out"))
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(table))))
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(
        list(table.accuracy), abs=1e-15
    )
    markdown, latex = tables.to_markdown(table), tables.to_latex(table)
    for row in table.itertuples():
        shown = f"{row.accuracy:.3f} ± {row.deviation:.3f}"
        assert (f"**{shown}**" in markdown) == row.best
        assert shown in markdown
        mean = rf"\mathbf{{{row.accuracy:.3f}}}" if row.best else f"{row.accuracy:.3f}"
        assert rf"${mean} \pm {row.deviation:.3f}$" in latex
    assert latex.count(r"\toprule") == latex.count(r"\midrule") == latex.count(r"\bottomrule") == 1
    columns = {line.count("&") for line in latex.splitlines() if line.endswith(r"\\")}
    assert columns == {7}


class Published:
    """A table of published results with one cell."""

    def value(self, cell, method, runs):
        found = (cell.setting, method) == ("2", "fedavg") and len(list(runs)) == 2
        return (0.5, 0.25) if found else None

    def notes(self, record):
        return [f"Published with {len(record.cells)} cells."]


def test_published_results_stand_next_to_ours_where_there_are_any(tmp_path):
    invent_study(tmp_path / "out", study(setting=[1, 2], seed=[0, 1]))
    alone = read_record(tmp_path / "out")
    record = replace(alone, paper=Published())
    table = tables.summary(record)
    (row,) = [row for row in table.itertuples() if not math.isnan(row.paper)]
    assert (row.setting, row.method, row.paper, row.paper_spread) == ("2", "FedAvg", 0.5, 0.25)
    assert row.difference == row.accuracy - 0.5
    shown = f"(paper 0.500, {tables.signed(row.difference)})"
    assert tables.to_markdown(table).count(shown) == 1
    assert tables.notes(record)[-1] == "Published with 2 cells."
    assert html.render(record).count("<small>paper 0.500") == 1
    for write in tables.WRITERS.values():
        assert "paper" not in write(tables.summary(alone))
    assert "<small>paper" not in html.render(alone)


def test_images_that_were_encoded_again_are_noted(tmp_path):
    for number, (dataset, origin, noted) in enumerate(
        (
            ("cifar10", "cifar10", False),
            ("cifar10", "cifar10-jpeg", True),
            ("cifar10", None, True),
            ("cifar10-jpeg", None, True),
            ("mnist", None, False),
        )
    ):
        config = study(dataset=dataset, method="fedavg", seed=[0])
        invent_study(tmp_path / str(number), config, origin=origin)
        notes = tables.notes(read_record(tmp_path / str(number)))
        assert any("JPEG" in note for note in notes) == noted, (dataset, origin)


def test_one_seed_has_no_deviation(tmp_path):
    invent_study(tmp_path / "out", study(seed=[7]))
    record = read_record(tmp_path / "out")
    table = tables.summary(record)
    assert table.deviation.isna().all()
    assert "±" not in tables.to_markdown(table)
    assert "nan" not in tables.to_markdown(table) + tables.to_latex(table)
    assert "from one seed" in findings.accuracy_sentence(record, "Bi-level")


def test_variants_of_a_method_are_told_apart_not_averaged(tmp_path):
    config = study(seed=[0, 1], method="bilevel", settings={"solver": ["svrg", "cg"]})
    invent_study(tmp_path / "out", config)
    record = read_record(tmp_path / "out")
    assert set(record.labels) == {"Bi-level (solver svrg)", "Bi-level (solver cg)"}
    assert list(tables.summary(record).seeds) == [2, 2]
    appearances = [record.appearance(label) for label in record.labels]
    assert appearances[0].color == appearances[1].color
    assert appearances[0].dashes != appearances[1].dashes


def test_a_partial_study_says_what_is_missing_and_reports_the_rest(tmp_path):
    config = study(seed=[0, 1], method=["bilevel", "fedavg"], setting=[1, 2])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    runs = config.runs()
    for run in runs[:4]:
        invent_run(store, run)
    damaged = invent_run(store, runs[4])
    (damaged.path / "weights.json").write_text("{}")
    stopped = invent_run(store, runs[5])
    (stopped.path / "finished.json").unlink()
    failed = invent_run(store, runs[6])
    fail_run(failed, "training diverged")
    record = read_record(store.path)
    assert len(record.runs) == 4
    reasons = [each.reason for each in record.missing]
    assert len(reasons) == 4
    for reason, word in zip(reasons, ("damaged", "step 20", "diverged", "not begun"), strict=True):
        assert word in reason


def test_the_log_of_an_earlier_version_does_no_harm(tmp_path):
    config = study(seed=[0, 1], method=["fedavg"])
    store = invent_study(tmp_path / "out", config)
    path = store.runs / config.runs()[1].directory
    (path / "finished.json").unlink()
    (path / "events.jsonl").rename(path / "log.txt")
    (missing,) = read_record(store.path).missing
    assert missing.reason == "begun"


def test_tuned_runs_are_not_missed_under_the_names_they_would_have_without_tuning(tmp_path):
    """Tuning, and following Bi-level, change parameters and so the names of directories."""
    config = study(
        seed=[0, 1],
        method=["bilevel", "fedavg"],
        tune={"bilevel": {"learning_rate": [0.05, 0.01]}},
        follow_bilevel=True,
    )
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs()[:3]:
        invent_run(store, with_settings(run, {"learning_rate": 0.01}))
    record = read_record(store.path)
    assert [(each.method, each.seed) for each in record.missing] == [("fedavg", 1)]


def test_a_tuned_study_says_why_runs_are_missing(tmp_path):
    config = study(
        seed=[0, 1, 2, 3], method="bilevel", tune={"bilevel": {"learning_rate": [0.05, 0.01]}}
    )
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    made = [
        invent_run(store, with_settings(run, {"learning_rate": 0.01})) for run in config.runs()[:3]
    ]
    (made[1].path / "weights.json").write_text("{}")
    fail_run(made[2], "training diverged")
    missing = {each.seed: each.reason for each in read_record(store.path).missing}
    assert "damaged" in missing[1]
    assert missing[2] == "failed: training diverged"
    assert missing[3] == "not begun"
    assert len(missing) == 3


def test_a_setting_whose_file_is_gone_leaves_only_a_doubt(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nmerged_classes = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]\nminority = [0.8, 0.2]\n'
        "majority = [0.2, 0.8]\ntrain_size = 50\nvalidation_size = 20\ntest_size = 50\n"
    )
    config = study(dataset="digits", setting=str(file), seed=[0], method="fedavg")
    store = invent_study(tmp_path / "out", config)
    file.unlink()
    record = read_record(store.path)
    assert record.cells[0].setting == "mine"
    assert "mine.toml" in record.doubt


def test_an_edited_run_is_missing_and_the_rest_is_reported(tmp_path):
    config = study(seed=[0, 1], method="fedavg")
    store = invent_study(tmp_path / "out", config)
    file = next(store.runs.iterdir()) / "config.json"
    finished = file.with_name("finished.json")
    content = json.loads(finished.read_text())
    file.write_text(file.read_text().replace('"seed": ', '"seed": 1'))
    content["files"]["config.json"] = hashlib.sha256(file.read_bytes()).hexdigest()
    finished.write_text(json.dumps(content))
    record = read_record(store.path)
    assert len(record.runs) == 1
    assert "edited" in record.missing[0].reason


def test_places_without_results_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_record(tmp_path / "none")
    with pytest.raises(InputError, match="has no results"):
        read_record(tmp_path)
    empty = Store(tmp_path / "out")
    empty.open(resume=False)
    empty.write_study(study())
    with pytest.raises(InputError, match="has no finished run"):
        read_record(tmp_path / "out")


def test_names_cannot_break_out_of_a_table(tmp_path):
    name = "a|b_50%$<script>"
    invent_study(tmp_path / "out", study(dataset=name, method="fedavg", seed=[0]))
    table = tables.summary(read_record(tmp_path / "out"))
    row = tables.to_markdown(table).splitlines()[2]
    assert row.replace(r"\|", "").count("|") == 5
    assert "<script>" not in row
    assert r"a|b\_50\%\$<script>" in tables.to_latex(table)


def test_the_answer_is_computed_seed_by_seed(tmp_path):
    store = invent_study(tmp_path / "out", study(seed=[0, 1, 2, 3]))
    record = read_record(store.path)
    truth = {}
    for run in store.runs.iterdir():
        config = json.loads((run / "config.json").read_text())["config"]
        accuracy = json.loads((run / "finished.json").read_text())["test_accuracy"]
        truth[config["method"], config["seed"]] = accuracy
    (gain,) = [gain for gain in findings.gains(record, "Bi-level") if gain.label == "FedAvg"]
    differences = [truth["bilevel", seed] - truth["fedavg", seed] for seed in range(4)]
    assert float(gain.differences[0]) == pytest.approx(statistics.mean(differences))
    # Student's t for three degrees of freedom, from a printed table.
    half = 3.182446 * statistics.stdev(differences) / math.sqrt(4)
    assert float(gain.band.high) == pytest.approx(statistics.mean(differences) + half, abs=1e-6)
    share = [
        sum(weight for node, weight in weights.items() if node.startswith("minority"))
        for run in store.runs.iterdir()
        if "bilevel" in run.name
        for weights in [json.loads((run / "weights.json").read_text())]
    ]
    assert findings.shares(record, "Bi-level")[0].share == pytest.approx(statistics.mean(share))
    assert f"{statistics.mean(share):.1%}" in findings.weights_sentence(record, "Bi-level")
