"""The documentation site: it builds without a warning, and no link leads nowhere."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import fedkin

ROOT = Path(__file__).parents[1]

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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
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
