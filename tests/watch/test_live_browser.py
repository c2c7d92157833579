"""The page of what is under way in a real Chromium; without it these tests are skipped."""

import os
import time
from pathlib import Path

import pytest
from live_studies import NODES, begin_fit, begin_run, begin_study, started, step

from browser import Browser, find_browser
from fedkin.events import RunFailed, RunFinished, Warned
from stores import invent_run, study

if find_browser() is None:
    pytest.skip("Chromium is not installed: run make browser", allow_module_level=True)

CONFIG = study(method=["bilevel", "fedavg"], seed=[0, 1], minority_nodes=1, majority_nodes=2)
TEXT = "document.body.innerText"


@pytest.fixture(scope="module")
def browser():
    browser = Browser(find_browser() or "")
    yield browser
    browser.close()


@pytest.fixture
def store(tmp_path):
    return begin_study(tmp_path / "out", CONFIG)


def wait_for(browser, expression, seconds=20.0):
    until = time.monotonic() + seconds
    while not (found := browser.run(expression)):
        assert time.monotonic() < until, f"{expression}: {browser.run(TEXT)}"
        time.sleep(0.1)
    return found


def saying(text):
    return f"{TEXT}.includes({text!r})"


def test_it_moves_without_reload_and_ends_with_the_report(browser, serve, store):
    runs = CONFIG.runs()
    with serve(store.path) as server:
        browser.open(server.url)
        assert browser.run(saying("0 of 4 runs finished"))
        assert browser.run("document.querySelectorAll('svg.chart').length") == 0
        browser.run("window.stays = 'yes'")
        directory = begin_run(store, runs[0], steps=3)
        wait_for(browser, saying("3 of 20"))
        wait_for(browser, "document.querySelectorAll('svg.chart').length == 3")
        line = "document.querySelector('polyline[data-name=\"test accuracy\"]')"
        drawn = browser.run(f"{line}.dataset.y.split(' ').length")
        # The color of a method that was not there when the page was loaded.
        assert browser.run(f"getComputedStyle({line}).stroke") not in ("none", "")
        directory.record(step(4, runs[0].directory, absent=("south",)))
        wait_for(browser, saying("south: missing since step 4"))
        assert browser.run(f"{line}.dataset.y.split(' ').length") == drawn + 1
        directory.record(Warned(run=runs[0].directory, message="south did not answer"))
        wait_for(browser, saying("south did not answer"))
        assert browser.run("document.querySelectorAll('script').length") == 1
        assert NODES[2] in browser.run(TEXT)
        assert browser.run("window.stays") == "yes"
        for run in runs:
            invent_run(store, run)
        wait_for(browser, "document.querySelector('#answer') !== null")
        assert browser.run("window.stays") is None
        assert browser.complaints() == []
        assert set(browser.requests()) == {server.url}
        # The report does not ask for more.
        count = len(browser.requests())
        time.sleep(1.5)
        assert browser.run("1") == 1
        assert len(browser.requests()) == count


def test_it_says_why_there_is_no_page_and_continues(browser, serve, store, monkeypatch):
    def broken(*_):
        raise OverflowError

    with serve(store.path) as server:
        browser.open(server.url)
        browser.run("window.stays = 'yes'")
        with monkeypatch.context() as patch:
            patch.setattr("fedkin.watch.page.render", broken)
            wait_for(browser, saying("The page cannot be made (OverflowError)"))
            assert browser.run(saying("0 of 4 runs finished"))
        wait_for(browser, f"!{saying('The page cannot be made')}")
        assert browser.run("window.stays") == "yes"


def test_back_and_reload_work(browser, serve, store):
    runs = CONFIG.runs()
    first = begin_run(store, runs[0], steps=3)
    begin_run(store, runs[1], steps=6)
    with serve(store.path) as server:
        browser.open(server.url)
        heading = "document.querySelector('#chosen h2')?.textContent"
        assert browser.run(heading) == runs[1].directory
        browser.run(
            f"[...document.querySelectorAll('td a')].find(a => a.textContent == "
            f"{runs[0].directory!r}).click()"
        )
        wait_for(browser, f"{heading} == {runs[0].directory!r}")
        first.record(step(4, runs[0].directory))
        wait_for(
            browser, "document.querySelector('#chosen .lead')?.textContent.includes('after step 4')"
        )
        browser.run("location.reload()")
        wait_for(
            browser, f"document.readyState == 'complete' && {heading} == {runs[0].directory!r}"
        )
        first.record(step(5, runs[0].directory))
        wait_for(
            browser, "document.querySelector('#chosen .lead')?.textContent.includes('after step 5')"
        )
        assert browser.run("history.length") == 3  # an empty page, all runs, one run
        browser.run("history.back()")
        # The run with the latest news, which is now the first.
        wait_for(browser, f"location.search == '' && {heading} == {runs[0].directory!r}")
        begin_run(store, runs[2], steps=2)
        wait_for(browser, f"{heading} == {runs[2].directory!r}")
        browser.run("history.forward()")
        wait_for(browser, f"location.search != '' && {heading} == {runs[0].directory!r}")


def test_what_the_reader_has_unfolded_and_chosen_stays(browser, serve, store):
    runs = CONFIG.runs()
    invent_run(store, runs[1])
    directory = begin_run(store, runs[0], steps=3)
    with serve(store.path) as server:
        browser.open(server.url)
        browser.run("document.querySelector('details').open = true")
        browser.run("document.querySelector('#running a').focus()")
        directory.record(step(4, runs[0].directory))
        wait_for(browser, saying("4 of 20"))
        assert browser.run("document.querySelector('details').open")
        assert browser.run("document.activeElement.textContent") == runs[0].directory


def test_it_says_when_nobody_answers_any_more_and_returns(browser, serve, store):
    begin_run(store, CONFIG.runs()[0], steps=3)
    with serve(store.path) as server:
        browser.open(server.url)
        assert browser.run("document.querySelector('#gone').hidden")
        port = server.server_port
    wait_for(browser, "!document.querySelector('#gone').hidden")
    assert browser.run(saying("fedkin watch has ended"))
    assert port


def test_a_fit_ends_with_its_failure(browser, serve, tmp_path):
    begin_fit(tmp_path / "r", started(), step(1), step(2), RunFailed(reason="too few nodes"))
    with serve(tmp_path / "r") as server:
        browser.open(server.url)
        assert browser.run(saying("Nothing is under way: 1 run failed"))
        assert browser.run(saying("too few nodes"))


def test_it_works_without_script(browser, serve, store):
    directory = begin_run(store, CONFIG.runs()[0], steps=3)
    with serve(store.path) as server:
        browser.open(server.url, script=False)
        root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
        find = {"nodeId": root, "selector": "meta[http-equiv=refresh]"}
        assert browser.call("DOM.querySelector", **find)["nodeId"] != 0
        directory.record(RunFinished(run=CONFIG.runs()[0].directory, stopped="converged"))
        browser.call("Page.reload")  # as it does by itself after five seconds
        until, shown = time.monotonic() + 20, ""
        while "converged" not in shown:
            assert time.monotonic() < until, shown
            time.sleep(0.3)
            root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
            shown = browser.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_it_fits_and_follows_the_theme(browser, serve, store, width):
    runs = CONFIG.runs()
    begin_run(store, runs[0], steps=9, absent=("south",)).record(
        Warned(run=runs[0].directory, message="south did not answer for 30 s: continued without it")
    )
    begin_run(store, runs[1], steps=4).record(
        RunFailed(run=runs[1].directory, reason="training diverged")
    )
    begin_run(store, runs[2], steps=3)
    with serve(store.path) as server:
        for dark in (False, True):
            browser.open(server.url, width=width, dark=dark)
            assert browser.run("document.documentElement.scrollWidth") <= width
            ground = browser.run("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark
            boxes = browser.run(
                "[...document.querySelectorAll('svg.chart')].map(c => c.getBoundingClientRect())"
                ".map(b => [b.left, b.right, b.height])"
            )
            assert len(boxes) == 3
            assert all(left >= 0 and right <= width and high > 60 for left, right, high in boxes)
            if directory := os.environ.get("FEDKIN_SCREENSHOTS"):
                Path(directory).mkdir(parents=True, exist_ok=True)
                theme = "dark" if dark else "light"
                browser.screenshot(Path(directory) / f"live-{width}-{theme}.png")
