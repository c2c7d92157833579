"""The page in a real Chromium: `make browser` installs it; without it these tests are skipped."""

import os
from pathlib import Path

import pytest

from browser import Browser, find_browser
from fedkin.report import html
from fedkin.report.reading import read_record
from stores import invent_study, study

EVIL = "<script>alert(1)</script>"
WIDTHS = (400, 1000, 1600)

if find_browser() is None:
    pytest.skip("Chromium is not installed: run make browser", allow_module_level=True)


@pytest.fixture(scope="module")
def browser():
    browser = Browser(find_browser() or "")
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A single cell, and a study of several cells and both targets."""
    directory = tmp_path_factory.mktemp("pages")
    single = study(minority_nodes=1, majority_nodes=2)
    several = study(setting=[1, 2, 4], target=["minority", "majority"], seed=[0, 1, 2])
    invent_study(directory / "single", single, names=[EVIL, "north", "south"])
    invent_study(directory / "several", several)
    shared = study(partition="groups", method=["bilevel", "fedavg", "local"], target="all")
    invent_study(directory / "everyone", shared, names=[EVIL, *map(str, range(14))], groups=3)
    crowd = shared.model_copy(update={"seed": [0]})
    invent_study(directory / "crowd", crowd, names=[f"hospital-{n}" for n in range(100)], groups=10)
    return {
        name: html.write_page(read_record(directory / name), directory / name / html.NAME).as_uri()
        for name in ("single", "several", "everyone", "crowd")
    }


@pytest.mark.parametrize("name", ["single", "several", "everyone", "crowd"])
def test_it_opens_without_complaint_or_network(browser, pages, name):
    browser.open(pages[name])
    assert browser.run("document.title").endswith("fedkin")
    assert browser.complaints() == []
    assert browser.requests() == [pages[name]]


def test_a_node_called_script_stays_text(browser, pages):
    browser.open(pages["single"])
    assert not any(
        event.get("method") == "Page.javascriptDialogOpening" for event in browser.events
    )
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert EVIL in browser.run("document.body.innerText")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["single", "several"])
def test_figures_are_seen_at_every_width_and_nothing_sticks_out(browser, pages, name, width):
    for dark in (False, True):
        browser.open(pages[name], width=width, dark=dark)
        charts = browser.run(
            "[...document.querySelectorAll('svg.chart')].map(c => c.getBoundingClientRect())"
            ".filter(b => b.height > 0).map(b => [b.left, b.right, b.height])"
        )
        assert len(charts) >= 7
        assert all(left >= 0 and right <= width and height > 60 for left, right, height in charts)
        assert browser.run("document.documentElement.scrollWidth") <= width
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark
        directory = os.environ.get("FEDKIN_SCREENSHOTS")
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            theme = "dark" if dark else "light"
            browser.screenshot(Path(directory) / f"{name}-{width}-{theme}.png")


@pytest.mark.parametrize("width", [1000, 1030, 1060, 1100, 1600])
def test_the_costs_are_seen_without_scrolling(browser, pages, width):
    browser.open(pages["several"], width=width)
    place = "document.querySelector('[aria-label=\"Costs of a run\"]')"
    # As wide as it gets: hundreds of everything.
    browser.run(f"{place}.querySelectorAll('td').forEach(cell => cell.textContent = '343.8')")
    assert browser.run(f"{place}.scrollWidth - {place}.clientWidth") == 0


def column(browser, number):
    return browser.run(
        f"[...document.querySelectorAll('#accuracy tbody tr')].map(r => r.cells[{number}].dataset.value)"
    )


def test_a_click_sorts_the_table_by_its_numbers(browser, pages):
    browser.open(pages["several"])
    before = [float(value) for value in column(browser, 3)]
    assert before != sorted(before)
    browser.run("document.querySelectorAll('#accuracy thead button')[3].click()")
    assert [float(value) for value in column(browser, 3)] == sorted(before)
    heading = "document.querySelectorAll('#accuracy thead th')[3].getAttribute('aria-sort')"
    assert browser.run(heading) == "ascending"
    browser.run("document.querySelectorAll('#accuracy thead button')[3].click()")
    assert [float(value) for value in column(browser, 3)] == sorted(before, reverse=True)
    assert browser.run(heading) == "descending"


def test_the_keyboard_sorts_too(browser, pages):
    browser.open(pages["several"])
    before = [float(value) for value in column(browser, 4)]
    browser.run("document.querySelectorAll('#accuracy thead button')[4].focus()")
    browser.press("Enter")
    assert [float(value) for value in column(browser, 4)] == sorted(before)


def test_the_pointer_shows_the_values_of_the_curves(browser, pages):
    browser.open(pages["single"])
    browser.run(
        "document.querySelector('svg.hover').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    box = browser.run("document.querySelector('svg.hover').getBoundingClientRect().toJSON()")
    browser.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2)
    tip = browser.run("document.querySelector('.tip').innerText")
    assert "synchronizations" in tip
    place = float(tip.split()[0])
    line = "document.querySelector('polyline[data-name=\"Bi-level\"]').dataset"
    x = [float(value) for value in browser.run(f"{line}.x").split()]
    y = [float(value) for value in browser.run(f"{line}.y").split()]
    assert f"{y[x.index(place)]:.3f}" in tip
    browser.move(2, 2)
    assert browser.run("document.querySelector('.tip').hidden")


def test_the_arrow_keys_show_values_too(browser, pages):
    browser.open(pages["single"])
    browser.press("Tab")
    browser.run("document.querySelector('svg.hover').focus()")
    browser.press("ArrowLeft")
    first = browser.run("document.querySelector('.tip').innerText")
    browser.press("ArrowLeft")
    second = browser.run("document.querySelector('.tip').innerText")
    assert float(second.split()[0]) < float(first.split()[0])


def test_the_choice_of_figures_works_without_script(browser, pages):
    """Nothing can be evaluated in the page: the pointer chooses, boxes tell what is seen."""
    browser.open(pages["several"], script=False)
    root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]

    def found(selector):
        return browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]

    def seen(number):
        return [is_seen(browser, node) for node in found(f".view-{number}")]

    views = len(found(".choice")) // 2  # as many for each target
    assert [seen(number) for number in range(1, views + 1)] == [[True, True]] + [[False] * 2] * (
        views - 1
    )
    label = found(f"label[for=view-1-{views}]")[0]
    browser.call("DOM.scrollIntoViewIfNeeded", nodeId=label)
    corners = browser.call("DOM.getBoxModel", nodeId=label)["model"]["content"]
    browser.click(sum(corners[::2]) / 4, sum(corners[1::2]) / 4)
    assert seen(1) == [False, True]
    assert seen(views) == [True, False]


def is_seen(browser, node):
    try:
        return browser.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 100
    except RuntimeError:  # It takes no place at all.
        return False


def accessible(browser, selector):
    """What a screen reader is told of the first element that a selector finds."""
    root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    (told,) = browser.call("Accessibility.getPartialAXTree", nodeId=node, fetchRelatives=False)[
        "nodes"
    ]
    return {key: told.get(key, {}).get("value") for key in ("role", "name", "description")}


def test_a_screen_reader_is_told_what_keys_do_and_what_is_chosen(browser, pages):
    browser.open(pages["several"])
    chart = accessible(browser, "svg.hover")
    assert "test accuracy against synchronizations" in chart["name"]
    assert "arrow keys" in chart["description"]
    assert "figure" in accessible(browser, "fieldset")["name"]
    assert browser.run("document.querySelector('[role=status]').textContent") == ""
    browser.press("Tab")
    browser.run("document.querySelector('svg.hover').focus()")
    browser.press("ArrowLeft")
    spoken = accessible(browser, "[role=status]")
    assert spoken["role"] == "status"  # None were it hidden
    text = browser.run("document.querySelector('[role=status]').textContent")
    tip = browser.run("document.querySelector('.tip').innerText")
    assert text.replace(";", "").split() == tip.split()
    assert "Bi-level 0." in text


def test_at_1000_pixels_the_table_fits_and_the_answer_leaves_no_hole(browser, pages):
    browser.open(pages["several"], width=1000)
    assert browser.run(
        "(t => t.scrollWidth <= t.clientWidth)(document.querySelector('#accuracy').parentElement)"
    )
    weights, gain, costs = browser.run(
        "[...document.querySelectorAll('.answer article')].map(a => a.getBoundingClientRect())"
        ".map(b => [b.left, b.top])"
    )
    assert gain[0] == costs[0] > weights[0]
    assert gain[1] == weights[1]


def test_it_is_all_there_without_script(browser, pages, tmp_path):
    """Evaluate nothing in the page: it could not. The picture and the text of the document tell."""
    browser.open(pages["single"], script=False)
    assert browser.complaints() == []
    root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
    for selector in ("svg.chart", "#accuracy tbody tr", ".legend"):
        found = browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]
        assert found
        box = browser.call("DOM.getBoxModel", nodeId=found[0])["model"]
        assert box["width"] > 100
    assert browser.call("DOM.querySelector", nodeId=root, selector="thead button")["nodeId"] == 0


def test_print_shows_every_figure(browser, pages):
    browser.open(pages["several"])
    browser.call("Emulation.setEmulatedMedia", media="print")
    hidden = "[...document.querySelectorAll('.view')].filter(v => v.offsetHeight === 0).length"
    assert browser.run(hidden) == 0
    browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["everyone", "crowd"])
def test_everyones_charts_fit_at_every_width(browser, pages, name, width):
    """Only the matrix of a crowd is wider than a small screen, and scrolls by itself."""
    for dark in (False, True):
        browser.open(pages[name], width=width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") <= width
        boxes = browser.run(
            "[...document.querySelectorAll('#everyone figure > svg, #everyone .wide')]"
            ".map(c => c.getBoundingClientRect()).map(b => [b.left, b.right, b.height])"
        )
        assert len(boxes) >= 4
        assert all(
            left >= 0 and right <= width and height > 60 for left, right, height in boxes[:3]
        )
        cell = browser.run("document.querySelector('.heat-cell').getBoundingClientRect().width")
        assert cell > (7 if name == "crowd" else 12)


def test_the_pointer_and_the_keyboard_say_who_learns_with_whom(browser, pages):
    browser.open(pages["everyone"], height=2500)
    x, y = browser.run(
        "(b => [b.left + b.width / 2, b.top + b.height / 2])"
        "(document.querySelector('.heat-cell').getBoundingClientRect())"
    )
    browser.move(x, y)
    assert "learns with" in browser.run("document.querySelector('.tip').textContent")
    browser.run("document.querySelector('#everyone svg.tips').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    said = browser.run("document.querySelector('[role=status]').textContent")
    assert "learns with" in said
    assert said == browser.run("document.querySelectorAll('#everyone [data-row]')[1].dataset.row")


@pytest.mark.parametrize("name", ["several", "everyone", "crowd"])
def test_a_page_is_printed_whole(browser, pages, name):
    """On A4, light also where the screen is dark, nothing beyond the edge, nothing folded up."""
    browser.open(pages[name], width=718, height=1000, dark=True)
    folded = browser.run("document.querySelectorAll('details:not([open])').length")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 718
    ink = browser.run("getComputedStyle(document.body).color")
    assert sum(map(int, ink[4:-1].split(","))) < 200
    if name != "several":
        sizes = browser.run(
            "[...document.querySelectorAll('#everyone .chart')].map(c => c.getBoundingClientRect())"
            ".map(b => [b.right, b.height])"
        )
        assert all(right <= 718 and height <= 900 for right, height in sizes)
        assert "own answer" in browser.run("document.querySelector('.answer').textContent")
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.run("document.querySelectorAll('details:not([open])').length") == folded > 0
    assert browser.call("Page.printToPDF")["data"]
