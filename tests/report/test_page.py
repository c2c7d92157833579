"""The page as text: what it says, that nothing escapes into it, how long it takes and how big it is."""

import json
import re
import statistics
import time
from html.parser import HTMLParser

import pytest

from fedkin.methods.registry import METHODS as KNOWN_METHODS
from fedkin.methods.registry import PAPER_METHODS
from fedkin.report import figures, html
from fedkin.report.reading import read_record
from fedkin.studies.store import Store
from stores import accuracies_on_disk, fail_run, invent_run, invent_study, node_names, study

METHODS = {
    name: KNOWN_METHODS.get(name).title for name in KNOWN_METHODS.names() if name in PAPER_METHODS
}
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


def test_a_partition_is_described_in_words(tmp_path):
    config = study(partition="groups", method=["bilevel", "local"], target="all")
    invent_study(tmp_path / "out", config, names=list("abcdef"), groups=2)
    shown = "".join(Tags(html.render(read_record(tmp_path / "out"))).text)
    (run, *_) = config.runs()
    assert shown.count(run.partition.title) > 1
    assert "'kind'" not in shown


def test_names_from_outside_stay_text(tmp_path):
    config = study(dataset=f"x{EVIL}", seed=[0, 1], method=["bilevel", "local"])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs():
        names = [EVIL, '" onload="alert(2)', "$x_1$ & {{ 7*7 }}", *node_names(run)[3:]]
        run_directory = invent_run(store, run, names=names, warnings=[f"node {EVIL} was dropped"])
    fail_run(run_directory, EVIL)
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
        "What you gain",
        "What it costs",
        "Figures",
        "Test accuracy",
        "Who holds what",
        "Configuration and versions",
        "What happened",
    ]
    assert "node 3 was dropped" in page


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
    # An unknown aria attribute is ignored without a word: the section would have no name.
    tags = Tags(page).found
    named = {name for _, attributes in tags for name in attributes if name.startswith("aria-")}
    assert named == {"aria-hidden", "aria-label", "aria-labelledby"}


@pytest.mark.parametrize(
    "methods",
    [["local"], ["fedavg"], ["bilevel"], ["ditto", "local"], ["fedavg", "ditto", "local"]],
)
def test_any_selection_of_methods_gives_a_page(tmp_path, methods):
    invent_study(tmp_path / "out", study(seed=[0, 1], method=methods))
    record = read_record(tmp_path / "out")
    page = html.render(record)
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", page.lower())
    truth = accuracies_on_disk(tmp_path / "out")
    means = {method: statistics.mean(truth["mnist", "2", "minority", method]) for method in methods}
    told = " ".join("".join(Tags(page).text).split())
    chosen = "bilevel" if "bilevel" in methods else max(methods, key=lambda name: means[name])
    assert f"{METHODS[chosen]} reaches a test accuracy of {means[chosen]:.3f}" in told
    assert f"A run of {METHODS[chosen]} takes" in told
    assert ("No other method" in told) == (len(methods) == 1)
    assert ("No method here learned weights" in told) == ("bilevel" not in methods)
    if len(methods) > 1:
        second = max(set(methods) - {chosen}, key=lambda name: means[name])
        assert f"the best alternative, {METHODS[second]}, {means[second]:.3f}" in told
        assert f"The difference is +{means[chosen] - means[second]:.3f}" in told


@pytest.mark.parametrize("methods", [["fedavg", "apfl"], ["fedavg", "fedfomo", "cobo"]])
def test_the_page_says_which_methods_need_single_nodes_models(tmp_path, methods):
    invent_study(tmp_path / "out", study(seed=[0, 1], method=methods))
    told = " ".join("".join(Tags(html.render(read_record(tmp_path / "out"))).text).split())
    said = "FedFomo and CoBo need single nodes' models: no secure aggregation." in told
    assert said == ("cobo" in methods) == ("secure aggregation" in told)


def test_several_cells_without_learned_weights_are_compared_too(tmp_path):
    config = study(seed=[0, 1], setting=[1, 2], method=["fedavg", "ditto", "local"])
    invent_study(tmp_path / "out", config)
    told = "".join(Tags(html.render(read_record(tmp_path / "out"))).text)
    assert "Ditto has the best mean test accuracy in 2 of 2 cells" in told
    assert "A run of Ditto takes" in told
    assert "accuracy of Ditto minus that of" in told


def test_means_and_difference_are_of_the_same_seeds(tmp_path):
    """The second method lacks two of four seeds: the numbers of the sentence still subtract."""
    config = study(seed=[0, 1, 2, 3], method=["bilevel", "ditto"])
    store = Store(tmp_path / "out")
    store.open(resume=False)
    store.write_study(config)
    accuracy = {}
    for run in config.runs():
        if run.method == "bilevel" or run.seed < 2:
            made = invent_run(store, run)
            outcome = json.loads((made.path / "finished.json").read_text())
            accuracy[run.method, run.seed] = outcome["test_accuracy"]
    page = html.render(read_record(store.path))
    first, second = (
        statistics.mean(accuracy[method, seed] for seed in (0, 1))
        for method in ("bilevel", "ditto")
    )
    told = "".join(Tags(page).text)
    assert f"On the 2 seeds that both have, Bi-level reaches a test accuracy of {first:.3f}" in told
    assert f"Ditto, {second:.3f}" in told
    assert f"The difference is +{first - second:.3f}" in told
    assert "2 to 4 seeds" in told
    assert "95% confidence interval, 4 seeds" not in told


def test_the_table_of_the_page_is_what_the_files_say(tmp_path):
    config = study(setting=[2, 4], target=["minority", "majority"], seed=[0, 1, 2])
    invent_study(tmp_path / "out", config)
    truth = accuracies_on_disk(tmp_path / "out")
    page = html.render(read_record(tmp_path / "out"))
    table = re.search(r'<table class="sortable" id="accuracy">.*?</table>', page, re.DOTALL).group()
    (heading, *rows) = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    titles = [re.sub("<[^>]*>", "", title) for title in re.findall(r"<th.*?</th>", heading)]
    assert titles[3:] == list(METHODS.values())
    assert len(rows) == 4
    for row in rows:
        places = re.findall(r"<t[dh][^>]*>.*?</t[dh]>", row, re.DOTALL)
        dataset, setting, target = (re.sub("<[^>]*>", "", place) for place in places[:3])
        values = {method: truth[dataset, setting, target, method] for method in METHODS}
        best = max(values, key=lambda method: statistics.mean(values[method]))
        for method, place in zip(METHODS, places[3:], strict=True):
            mean, spread = statistics.mean(values[method]), statistics.stdev(values[method])
            sorted_by = float(re.search(r'data-value="([^"]*)"', place).group(1))
            assert sorted_by == pytest.approx(mean, abs=1e-12)
            shown = f"{mean:.3f} ± {spread:.3f}"
            assert (f"<strong>{shown}</strong>" in place) == (method == best)
            assert shown in place


def test_the_bars_of_the_page_are_the_weights_of_the_results(tmp_path):
    path = invent_study(tmp_path / "out", study(seed=[0, 1, 2])).path
    weights = [
        json.loads((run / "weights.json").read_text()) for run in path.glob("runs/*-bilevel-*")
    ]
    page = html.render(read_record(path))
    bars = re.findall(r'<rect [^>]*data-node="([^"]*)" data-weight="([^"]*)"', page)
    assert len(bars) == 30  # in the answer, and among the figures
    for node, weight in bars:
        assert float(weight) == pytest.approx(statistics.mean(w[node] for w in weights), rel=1e-5)


def test_variants_can_be_told_apart_where_methods_are_compared(tmp_path):
    config = study(seed=[0], method="bilevel", settings={"solver": ["svrg", "cg"]})
    page = html.render(read_record(invent_study(tmp_path / "out", config).path))
    chart = re.search(r'<svg[^>]*aria-label="test accuracy of each method".*?</svg>', page).group()
    assert {"Bi-level (solver svrg)", "Bi-level (solver cg)"} <= set(
        re.findall(r"<text[^>]*>([^<]*)<", chart)
    )


def test_a_run_of_one_step_can_be_drawn(tmp_path):
    invent_study(tmp_path / "out", study(seed=[0]), steps=1)
    record = read_record(tmp_path / "out")
    assert "<svg" in html.render(record)
    assert len(dict(figures.draw_all(record))) == 6


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
