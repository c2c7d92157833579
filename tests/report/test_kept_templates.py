"""Templates are compiled once and kept beside other compiled code, where there is a safe place for it."""

import pytest
from jinja2 import Environment

from fedkin.report import html


@pytest.fixture
def new_environment(monkeypatch):
    """Make the environment as a new process does, with code kept in a directory."""

    def make(directory):
        monkeypatch.setattr(html, "kept_code", lambda: directory)
        html.environment.cache_clear()
        return html.environment()

    yield make
    html.environment.cache_clear()


def test_a_later_process_compiles_no_template(new_environment, tmp_path, monkeypatch):
    new_environment(tmp_path).get_template("report.html")
    assert [path.suffix for path in tmp_path.glob("fedkin-*")] == [".template"]
    monkeypatch.setattr(Environment, "compile", None)
    assert new_environment(tmp_path).get_template("report.html").name == "report.html"
    with pytest.raises(TypeError):
        new_environment(None).get_template("report.html")


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_spoilt_file_does_no_harm(new_environment, tmp_path, content):
    new_environment(tmp_path).get_template("report.html")
    (kept,) = tmp_path.glob("fedkin-*")
    whole = kept.read_bytes()
    kept.write_bytes(content)
    new_environment(tmp_path).get_template("report.html")
    assert kept.read_bytes() == whole


def test_a_place_that_cannot_be_written_does_no_harm(new_environment, tmp_path):
    gone = tmp_path / "gone"
    assert new_environment(gone).get_template("report.html").name == "report.html"
    assert not gone.exists()
