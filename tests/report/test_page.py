"""The page as text: what it says, that nothing escapes into it, how long it takes and how big it is."""

import re
import time
from html.parser import HTMLParser

import pytest
from stores import invent_run, invent_study, node_names, study

from fedkin.experiments.store import Store
from fedkin.report import figures, html
from fedkin.report.reading import read_record

EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Every tag with its attributes, as a browser would see them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.found)


def test_names_from_outside_stay_text(tmp_path):
    config = study(dataset=f"x{EVIL}", seed=[0, 1], method=["bilevel", "local"])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs():
        names = [EVIL, '" onload="alert(2)', "$x_1$ & {{ 7*7 }}", *node_names(run)[3:]]
        run_directory = invent_run(store, run, names=names, warnings=[f"node {EVIL} was dropped"])
    (run_directory.path / "finished.json").unlink()
    run_directory.log(f"failed: {EVIL}")
    page = html.render(read_record(store.path))
    tags = Tags(page)
    assert tags.count("script") == 1
    assert not any("onload" in attributes for _, attributes in tags.found)
    shown = "".join(tags.text)
    assert f"node {EVIL} was dropped" in shown
    assert f"failed: {EVIL}" in shown
    assert "{{ 7*7 }}" in shown
    assert any(attributes.get("data-name") == EVIL for _, attributes in tags.found)
    directory = tmp_path / "figures"
    directory.mkdir()
    for file in figures.save_figures(read_record(store.path), directory):
        if file.suffix == ".svg":
            assert "<script" not in file.read_text()


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0, 1]))
    page = html.render(read_record(tmp_path / "out"))
    for _, attributes in Tags(page).found:
        for name in ("src", "href", "action", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_the_page_opens_with_the_answer_and_has_every_part(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0, 1]), warnings=["node 3 was dropped"])
    page = html.render(read_record(tmp_path / "out"))
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", page)
    assert headings == [
        "Whom to learn with",
        "What it brings",
        "What it costs",
        "Figures",
        "Test accuracy",
        "Who holds what",
        "Configuration and versions",
        "What happened",
    ]
    assert "node 3 was dropped" in page
    assert "paper 0.858" in page


def test_a_partial_study_says_so_first(tmp_path):
    config = study(seed=[0, 1], method=["bilevel", "fedavg"])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs()[:3]:
        invent_run(store, run)
    page = html.render(read_record(store.path))
    assert page.index("This study is not complete") < page.index("Whom to learn with")
    assert "1 of 4 runs are missing" in page


@pytest.mark.parametrize("methods", [["local"], ["fedavg"], ["bilevel"], ["ditto", "local"]])
def test_any_selection_of_methods_gives_a_page(tmp_path, methods):
    invent_study(tmp_path / "out", study(seed=[0], method=methods))
    page = html.render(read_record(tmp_path / "out"))
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", page.lower())


def test_a_run_of_one_step_can_be_drawn(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0]), steps=1)
    record = read_record(tmp_path / "out")
    assert "<svg" in html.render(record)
    assert len(dict(figures.draw_all(record))) == 5


@pytest.mark.slow
def test_a_study_of_160_runs_takes_under_30_seconds_and_8_megabytes(tmp_path):
    config = study(
        dataset=["mnist", "fashion-mnist", "cifar10", "tiny-imagenet32"],
        setting=[1, 2, 3, 4],
        seed=[0, 1],
    )
    path = invent_study(tmp_path / "out", config, steps=60).path
    # Processor time: what else the machine is doing is not the report's fault.
    begin = time.process_time()
    record = read_record(path)
    assert len(record.runs) == 160
    page = html.write_page(record, path / html.NAME)
    (path / "report").mkdir()
    figures.save_figures(record, path / "report")
    assert time.process_time() - begin < 30
    assert page.stat().st_size < 8e6
