"""The documentation site: it builds without a warning, and no link leads nowhere."""

import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import fedkin
from browser import Browser, find_browser

ROOT = Path(__file__).parents[1]

SEARCH = """
const query = document.querySelector('[name=query]');
query.focus();
query.value = 'shapley';
query.dispatchEvent(new Event('keyup', {bubbles: true}));
query.dispatchEvent(new Event('input', {bubbles: true}));
"""

pytest.importorskip("mkdocs", reason="needs the extra docs")


class Page(HTMLParser):
    """The links of a page, and the places that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.places.add(given["id"])
        self.links += [given[name] for name in ("href", "src") if given.get(name)]
        if tag != "a" and not (tag == "link" and given.get("rel") in ("canonical", "next", "prev")):
            self.loaded += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "scripts" / "site" / "build.py", "--out", out]
    # A command that another test has run in this process may have set the second.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # The page for what is not found has addresses from the root of a server.
    return {path: Page(path) for path in out.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_somewhere(site):
    lost = []
    for path, page in site.items():
        for link in page.links:
            if link.startswith(("http:", "https:", "data:", "mailto:")):
                continue
            name, _, place = link.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            known = site[target].places if target in site else None
            if not target.exists() or (place and known is not None and unquote(place) not in known):
                lost.append(f"{path.name}: {link}")
    assert lost == []
    assert sum(len(page.links) for page in site.values()) > 1000


def test_every_public_name_and_command_is_described(site):
    text = {path.name: path.read_text(encoding="utf-8") for path in site}
    for name in fedkin.__all__:
        assert name == "__version__" or f".{name}" in text["python.html"]
    for command in ("fedkin fit", "fedkin data show", "fedkin federation run"):
        assert f"<code>{command}</code>" in text["command-line.html"]


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {link for page in site.values() for link in page.loaded}
    assert len(loaded) > 3
    assert [link for link in loaded if link.startswith(("http", "//"))] == []


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium: `make browser`")
def test_a_page_opened_as_a_file_is_dark_where_wanted_and_can_be_searched(site):
    start = next(path for path in site if path.name == "index.html")
    browser = Browser(find_browser() or "")
    try:
        browser.open(start.as_uri(), dark=True)
        scheme = "document.body.dataset.mdColorScheme"
        assert wait_for(browser, f"{scheme} == 'slate' && {scheme}") == "slate"
        # A page does not keep what it found first.
        browser.open(start.as_uri(), dark=False)
        assert wait_for(browser, f"{scheme} == 'default' && {scheme}") == "default"
        browser.run(SEARCH)
        found = "document.querySelectorAll('.md-search-result__item').length"
        assert wait_for(browser, found) > 0
        assert browser.complaints() == []
        assert [each for each in browser.requests() if each.startswith("http")] == []
    finally:
        browser.close()


def wait_for(browser, expression, patience=60):
    until = time.monotonic() + patience
    while not (value := browser.run(expression)) and time.monotonic() < until:
        time.sleep(0.1)
    return value
