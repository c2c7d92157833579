"""What figures and charts draw, read back from them and compared with the files."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from scipy import stats
from stores import invent_run, invent_study, study

from fedkin.experiments.store import Store
from fedkin.report import charts, curves, figures, html
from fedkin.report.reading import read_record
from fedkin.report.style import GROUP_COLOURS, LOOKS, OTHER

SEEDS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return invent_study(tmp_path_factory.mktemp("study") / "out", study(seed=SEEDS)).path


@pytest.fixture(scope="module")
def drawn(path):
    return dict(figures.draw_all(read_record(path)))


def histories(path, method) -> list[pd.DataFrame]:
    return [
        pd.read_parquet(run / "history.parquet") for run in sorted(path.glob(f"runs/*-{method}-*"))
    ]


def line(figure, label):
    return next(line for line in figure.axes[0].get_lines() if line.get_label() == label)


def test_curves_show_mean_and_confidence_interval_over_seeds(path, drawn):
    figure = drawn["accuracy-synchronizations"]
    for method, label in (("bilevel", "Bi-level"), ("ditto", "Ditto"), ("pfedme", "pFedMe")):
        tables = histories(path, method)
        x, y = line(figure, label).get_data()
        accuracy = np.array([table.test_accuracy for table in tables])
        np.testing.assert_array_equal(x, tables[0].synchronizations)
        np.testing.assert_allclose(y, accuracy.mean(axis=0))
        low, high = stats.t.interval(
            0.95, len(SEEDS) - 1, accuracy.mean(axis=0), stats.sem(accuracy, axis=0)
        )
        band = curves.score_curves(
            read_record(path), read_record(path).cells[0], "synchronizations"
        )
        np.testing.assert_allclose(band[label].band.low, low)
        np.testing.assert_allclose(band[label].band.high, high)
        (shade,) = [
            shade
            for shade in figure.axes[0].collections
            if to_hex(shade.get_facecolor()[0]) == LOOKS[method].colour.lower()
        ]
        corners = shade.get_paths()[0].vertices
        assert corners[:, 1].min() == pytest.approx(low.min())
        assert corners[:, 1].max() == pytest.approx(high.max())


def test_local_train_is_a_level_at_its_final_value(path, drawn):
    final = np.mean([table.test_accuracy.iloc[-1] for table in histories(path, "local")])
    for name in ("accuracy-synchronizations", "accuracy-points"):
        level = line(drawn[name], "Local-train").get_ydata()
        np.testing.assert_allclose(level, final)


def test_runs_evaluated_at_different_places_are_put_together():
    """Two straight lines: their mean is known everywhere, and a stopped run keeps its value."""
    first = pd.DataFrame({"points": [0, 10, 20], "score": [0.0, 1.0, 2.0]})
    second = pd.DataFrame({"points": [5, 15], "score": [5.0, 15.0]})
    curve = curves.over_seeds([first, second], "points", "score")
    np.testing.assert_array_equal(curve.x, [5, 10, 15, 20])
    np.testing.assert_allclose(
        curve.band.mean, [(0.5 + 5) / 2, (1 + 10) / 2, (1.5 + 15) / 2, 17 / 2]
    )
    np.testing.assert_allclose(curve.band.high, [5, 10, 15, 15])


def test_weights_are_drawn_for_each_node_in_the_colour_of_its_group(path, drawn):
    tables = histories(path, "bilevel")
    axes = drawn["weights-iterations"].axes[0]
    lines = [each for each in axes.get_lines() if len(each.get_xdata()) == 20]
    assert len(lines) == 15
    columns = [name for name in tables[0] if name.startswith("weight ")]
    for each, column in zip(lines, columns, strict=True):
        np.testing.assert_allclose(
            each.get_ydata(), np.mean([table[column] for table in tables], axis=0)
        )
        group = "similar" if "minority" in column else "dissimilar"
        assert each.get_color() == GROUP_COLOURS[group]
        assert each.is_dashed() == (group == "dissimilar")  # to be told apart in grey


def test_final_weights_are_those_of_the_results(path, drawn):
    weights = [
        json.loads((run / "weights.json").read_text())
        for run in sorted(path.glob("runs/*-bilevel-*"))
    ]
    bars = [bar.get_height() for bar in drawn["weights-final"].axes[0].patches]
    expected = [np.mean([each[name] for each in weights]) for name in weights[0]]
    np.testing.assert_allclose(bars, expected)


def test_traffic_is_that_of_whole_runs(path):
    record = read_record(path)
    sent = curves.traffic(record, record.cells[0])["Ditto"]
    tables = histories(path, "ditto")
    assert sent.megabytes_up == pytest.approx(np.mean([t.bytes_up.iloc[-1] for t in tables]) / 1e6)
    assert sent.megabytes_down == pytest.approx(
        np.mean([t.bytes_down.iloc[-1] for t in tables]) / 1e6
    )


def test_the_pages_charts_carry_the_same_numbers(path):
    page = html.render(read_record(path))
    found = re.search(r'<polyline[^>]*data-name="Ditto" data-x="([^"]*)" data-y="([^"]*)"', page)
    x, y = (np.array(text.split(), dtype=float) for text in found.groups())
    tables = histories(path, "ditto")
    np.testing.assert_allclose(x, tables[0].synchronizations)
    np.testing.assert_allclose(
        y, np.mean([table.test_accuracy for table in tables], axis=0), rtol=1e-5
    )


def test_a_study_is_laid_out_as_settings_by_data_sets(tmp_path):
    config = study(dataset=["mnist", "cifar10"], setting=[1, 2, 4], seed=[0], method=["bilevel"])
    invent_study(tmp_path / "out", config)
    figure = dict(figures.draw_all(read_record(tmp_path / "out")))["accuracy-synchronizations"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"{d}, setting {s}" for d in ("mnist", "cifar10") for s in (1, 2, 4)]
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


def test_no_panel_cuts_off_what_another_one_shows(tmp_path):
    """Panels share axes, and the second data set's runs are three times as long."""
    store = Store(tmp_path / "out")
    config = study(dataset=["mnist", "cifar10"], setting=[1, 2], seed=[0, 1], method=["bilevel"])
    store.open(resume=False)
    store.write_study(config)
    for run in config.runs():
        invent_run(store, run, steps=10 if run.dataset == "mnist" else 30)
    for name, figure in figures.draw_all(read_record(store.path)):
        for axes in figure.axes:
            left, right = axes.get_xlim()
            bottom, top = axes.get_ylim()
            for each in axes.get_lines():
                if each.get_transform() != axes.transData:
                    continue
                x, y = each.get_data()
                assert left <= np.min(x), name
                assert np.max(x) <= right, name
                assert bottom <= np.min(y), name
                assert np.max(y) <= top, name


def test_two_targets_give_two_figures(tmp_path):
    config = study(target=["minority", "majority"], seed=[0], method=["bilevel", "local"])
    invent_study(tmp_path / "out", config)
    names = [name for name, _ in figures.draw_all(read_record(tmp_path / "out"))]
    assert len(names) == 10
    assert all(name.endswith(("-minority", "-majority")) for name in names)


def test_methods_differ_in_colour_dashes_and_marker():
    looks = [*LOOKS.values(), OTHER]
    for trait in ("number", "colour", "dashes", "marker"):
        assert len({getattr(look, trait) for look in looks}) == len(looks)
    assert not {look.colour for look in looks} & set(GROUP_COLOURS.values())


def test_figures_are_written_in_three_formats_the_same_each_time(path, tmp_path):
    record = read_record(path)
    for number in "12":
        (tmp_path / number).mkdir()
        figures.save_figures(record, tmp_path / number)
    first = sorted((tmp_path / "1").iterdir())
    assert len(first) == 15
    assert {file.suffix for file in first} == {".svg", ".png", ".pdf"}
    for file in first:
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes(), file.name
        if file.suffix == ".svg":
            ElementTree.fromstring(file.read_text())


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 0.033), (0.1, 0.86), (0, 820), (-0.2, 0.4), (3, 3), (0, 1e6)]
)
def test_ticks_are_few_round_and_inside(low, high):
    found = charts.ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    assert len(found) > 2 or low == high
