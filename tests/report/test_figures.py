"""What figures and charts draw, read back from them and compared with the files."""

import itertools
import json
import re
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from scipy import stats

from fedkin.methods.registry import METHODS
from fedkin.report import charts, curves, figures, html
from fedkin.report.reading import read_record
from fedkin.report.style import GROUP_COLORS, palette
from fedkin.report.style import appearance as appearance_of
from fedkin.studies.store import Store
from stores import invent_run, invent_study, study

APPEARANCES = {name: appearance_of(name) for name in METHODS.names()}
OTHER = appearance_of("not installed")
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
            if to_hex(shade.get_facecolor()[0]) == APPEARANCES[method].color.lower()
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


def test_the_interval_of_an_accuracy_stays_where_accuracies_are():
    far_apart = [pd.DataFrame({"points": [0.0], "x": [each]}) for each in (0.0, 0.5, 1.0)]
    for score, ends in (("test_accuracy", (0.0, 1.0)), ("validation_loss", (-0.742, 1.742))):
        tables = [table.rename(columns={"x": score}) for table in far_apart]
        band = curves.over_seeds(tables, "points", score).band
        # Student's interval of three seeds by hand: 0.5 ± 4.303 × 0.5 / √3.
        np.testing.assert_allclose([band.low[0], band.high[0]], ends, atol=1e-3)


def test_weights_are_drawn_for_each_node_in_the_color_of_its_group(path, drawn):
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
        assert each.get_color() == GROUP_COLORS[group]
        assert each.is_dashed() == (group == "dissimilar")  # to be told apart in gray


def test_final_weights_are_those_of_the_results(path, drawn):
    weights = [
        json.loads((run / "weights.json").read_text())
        for run in sorted(path.glob("runs/*-bilevel-*"))
    ]
    bars = [bar.get_height() for bar in drawn["weights-final"].axes[0].patches]
    expected = [np.mean([each[name] for each in weights]) for name in weights[0]]
    np.testing.assert_allclose(bars, expected)


def interpolated(tables, column) -> tuple[np.ndarray, np.ndarray]:
    """Places where any run was evaluated, and the mean accuracy there, runs taken as straight."""
    places = sorted({value for table in tables for value in table[column]})
    places = [place for place in places if place >= max(table[column].iloc[0] for table in tables)]
    means = [
        np.mean([np.interp(place, table[column], table.test_accuracy) for table in tables])
        for place in places
    ]
    return np.array(places, dtype=float), np.array(means)


@pytest.mark.parametrize(
    ("cost", "unit"), [("points", 1e3), ("bytes_up", 1e6), ("bytes_down", 1e6)]
)
def test_curves_against_points_and_bytes_are_those_of_the_files(path, drawn, cost, unit):
    page = html.render(read_record(path))
    title = {"points": "points processed", "bytes_up": "bytes sent up"}.get(cost, "bytes sent down")
    for method, label in (("bilevel", "Bi-level"), ("pfedme", "pFedMe")):
        x, y = interpolated(histories(path, method), cost)
        for each in (
            line(drawn[f"accuracy-{cost.replace('_', '-')}"], label),
            on_page(page, title, label),
        ):
            shown_x, shown_y = each if isinstance(each, tuple) else each.get_data()
            np.testing.assert_allclose(shown_x, x / unit, rtol=1e-5)
            np.testing.assert_allclose(shown_y, y, rtol=1e-5)


def on_page(page, title, label) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that a curve of the page carries."""
    chart = re.search(rf'<svg[^>]*aria-label="test accuracy against {title}, .*?</svg>', page)
    found = re.search(
        rf'<polyline[^>]*data-name="{label}" data-x="([^"]*)" data-y="([^"]*)"', chart.group()
    )
    x, y = (np.array(text.split(), dtype=float) for text in found.groups())
    return x, y


def test_methods_are_told_apart_without_color_in_every_figure(drawn):
    for name, figure in drawn.items():
        if name.startswith("accuracy"):
            lines = [each for each in figure.axes[0].get_lines() if each.get_label()[0] != "_"]
            traits = {
                (each.get_linestyle(), str(each._dash_pattern), each.get_marker()) for each in lines
            }
            assert len(traits) == len(lines) == 5, name


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


@pytest.mark.parametrize("settings", [[1], [1, 2, 3, 4]])
def test_nothing_that_is_written_overlaps_or_sticks_out(tmp_path, settings):
    config = study(dataset=["mnist"], setting=settings, seed=[0], method=["bilevel", "ditto"])
    names = [f"a hospital far away {number}" for number in range(15)]
    invent_study(tmp_path / "out", config, names=names)
    for name, figure in figures.draw_all(read_record(tmp_path / "out")):
        renderer = figure.canvas.get_renderer()
        titles = [axes.xaxis.label for axes in figure.axes if axes.get_xlabel()]
        if name.startswith("accuracy"):
            assert len(titles) == len(settings)
        extents = sorted(title.get_window_extent(renderer).extents.tolist() for title in titles)
        for left, right in itertools.pairwise(extents):
            assert left[2] < right[0], name
        for axes in figure.axes:
            boxes = [axis.get_tightbbox(renderer) for axis in (axes.xaxis, axes.yaxis)]
            for box in filter(None, boxes):
                assert box.x0 >= 0, name
                assert box.y0 >= 0, name
                assert box.x1 <= figure.bbox.x1, name


def test_a_missing_cell_takes_no_numbers_from_the_axes_of_others(tmp_path):
    """The first row has no first panel, the last row no last one."""
    store = Store(tmp_path / "out")
    config = study(dataset=["mnist", "cifar10"], setting=[1, 2, 3], seed=[0], method=["bilevel"])
    store.open(resume=False)
    store.write_study(config)
    present = {("mnist", 2), ("mnist", 3), ("cifar10", 1), ("cifar10", 2)}
    for run in config.runs():
        if (run.dataset, run.setting) in present:
            invent_run(store, run)
    figure = dict(figures.draw_all(read_record(store.path)))["accuracy-points"]
    figure.canvas.draw()
    labeled_x, labeled_y = set(), set()
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        title = axes.get_title(loc="left")
        if axes.get_xlabel():
            assert any(tick.label1.get_visible() for tick in axes.xaxis.get_major_ticks())
            labeled_x.add(title)
        else:
            assert not any(tick.label1.get_visible() for tick in axes.xaxis.get_major_ticks())
        if axes.get_ylabel():
            assert any(tick.label1.get_visible() for tick in axes.yaxis.get_major_ticks())
            labeled_y.add(title)
    assert labeled_x == {"cifar10, setting 1", "cifar10, setting 2", "mnist, setting 3"}
    assert labeled_y == {"mnist, setting 2", "cifar10, setting 1"}


def test_each_learner_has_weight_figures_of_its_own_that_name_it(tmp_path):
    config = study(seed=[0], method="bilevel", settings={"solver": ["svrg", "cg"]})
    path = invent_study(tmp_path / "out", config).path
    record = read_record(path)
    drawn = dict(figures.draw_all(record))
    page = html.render(record)
    for solver in ("svrg", "cg"):
        (run,) = [
            run
            for run in (path / "runs").iterdir()
            if json.loads((run / "config.json").read_text())["config"]["settings"]["solver"]
            == solver
        ]
        weights = json.loads((run / "weights.json").read_text())
        figure = drawn[f"weights-final-bi-level-solver-{solver}"]
        bars = [bar.get_height() for bar in figure.axes[0].patches]
        np.testing.assert_allclose(bars, list(weights.values()))
        assert figure.legends[0].get_title().get_text() == f"Bi-level (solver {solver})"
        chart = re.search(
            rf'<svg[^>]*aria-label="final weights of Bi-level \(solver {solver}\).*?</svg>', page
        )
        shown = re.findall(r'data-node="([^"]*)" data-weight="([^"]*)"', chart.group())
        assert [name for name, _ in shown] == list(weights)
        np.testing.assert_allclose(
            [float(value) for _, value in shown], list(weights.values()), rtol=1e-5
        )
        assert f"Final weights: Bi-level (solver {solver})" in page


def test_two_targets_give_two_figures(tmp_path):
    config = study(target=["minority", "majority"], seed=[0], method=["bilevel", "local"])
    invent_study(tmp_path / "out", config)
    names = [name for name, _ in figures.draw_all(read_record(tmp_path / "out"))]
    assert len(names) == 12
    assert all(name.endswith(("-minority", "-majority")) for name in names)


def test_markers_stay_on_their_line_however_many_methods_there_are():
    for points, number in itertools.product((3, 7, 20, 100), range(20)):
        places = figures._spread(points, number)
        assert places
        assert min(places) >= 0
        assert max(places) < points


def test_methods_differ_in_color_dashes_and_marker():
    appearances = [*APPEARANCES.values(), OTHER]
    for trait in ("name", "color", "dashes", "marker"):
        assert len({getattr(appearance, trait) for appearance in appearances}) == len(appearances)
    assert not {appearance.color for appearance in appearances} & set(GROUP_COLORS.values())


def linear(color) -> np.ndarray:
    """Light of a color, without the curve that screens apply (sRGB)."""
    values = np.array(to_rgb(color))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, two) -> float:
    """The contrast of the Web Content Accessibility Guidelines."""
    dark, light = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, two))
    return (light + 0.05) / (dark + 0.05)


def lightness_and_hue(light) -> np.ndarray:
    """CIELAB, in which 2.3 is what can just be told apart side by side."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ np.clip(light, 1e-3, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Machado, Oliveira and Fernandes 2009: what those see who lack one kind of cone.
SIGHT = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


@pytest.mark.parametrize("sight", SIGHT)
def test_colors_stay_apart_for_all_kinds_of_sight(sight):
    for colors in (
        [appearance.color for appearance in (*APPEARANCES.values(), OTHER)],
        set(GROUP_COLORS.values()),
    ):
        for one, two in itertools.combinations(colors, 2):
            seen = [lightness_and_hue(np.array(SIGHT[sight]) @ linear(c)) for c in (one, two)]
            assert np.linalg.norm(seen[0] - seen[1]) > 15, (one, two)


def test_thin_lines_have_contrast_on_paper_and_page():
    """3:1 is what the accessibility guidelines ask of graphics; the page has the same colors."""
    for color in [
        *(appearance.color for appearance in (*APPEARANCES.values(), OTHER)),
        *GROUP_COLORS.values(),
    ]:
        assert contrast(color, "white") >= 3, color
    style = resources.files("fedkin.report").joinpath("templates", "report.css").read_text()
    light, dark = (
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", rules))
        for rules in style.split("prefers-color-scheme: dark", 1)
    )
    for name in GROUP_COLORS:
        assert contrast(dark[name], dark["surface"]) >= 3, name
    colors = palette([*APPEARANCES.values(), OTHER])
    for appearance in (*APPEARANCES.values(), OTHER):
        assert contrast(appearance.dark_color, dark["surface"]) >= 3, appearance.name
        for color in (appearance.color, appearance.dark_color):
            assert f"--method-{appearance.name}: {color.lower()};" in colors
    assert {name: light[name].upper() for name in GROUP_COLORS} == GROUP_COLORS


def test_figures_are_written_in_three_formats_the_same_each_time(path, tmp_path):
    record = read_record(path)
    for number in "12":
        (tmp_path / number).mkdir()
        figures.save_figures(record, tmp_path / number)
    first = sorted((tmp_path / "1").iterdir())
    assert len(first) == 18
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
