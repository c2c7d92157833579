"""`python -m benchmarks`: mistakes, and the probes in separate processes."""

import pytest
from typer.testing import CliRunner

from benchmarks.command import app
from benchmarks.probe import probe
from fedkin.errors import FedkinError


def refused(*arguments):
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code != 0
    return str(found.exception) + found.output


def test_without_pytorch_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install '.[bench]'" in refused()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--points", "75"), "no multiple of 50"),
        (("--plot", "times.txt"), "must end in .svg, .png or .pdf"),
        (("--plot", "times"), "must end in .svg, .png or .pdf"),
        (("--repeats", "0"), "--repeats"),
        (("--points", "many"), "--points"),
    ],
)
def test_mistakes_are_named_before_anything_runs(arguments, message):
    assert message in refused(*arguments)


def test_the_cost_of_many_nodes_is_measured():
    found = probe({"probe": "scaling", "nodes": 8, "points": 50, "seconds": 0.1})
    assert found["data_megabytes"] == pytest.approx(8 * 50 * 784 / 1e6)
    assert found["node_step_microseconds"] > 0
    assert found["peak_megabytes"] > found["data_megabytes"]


def test_a_second_process_does_not_compile_again(tmp_path):
    network, cache = "Fashion-MNIST", str(tmp_path)
    settings = {"probe": "compilation", "network": network, "cache": cache, "tasks": ["ditto"]}
    first, second = probe(settings), probe(settings)
    assert sum(second["seconds"].values()) < 0.6 * sum(first["seconds"].values())


def test_a_probe_that_fails_says_why(tmp_path):
    with pytest.raises(FedkinError, match="no such network"):
        probe({"probe": "compilation", "network": "no such network", "cache": str(tmp_path)})
