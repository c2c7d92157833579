"""`python -m benchmarks`: mistakes, and the probes in separate processes."""

import pytest
from typer.testing import CliRunner

from benchmarks.command import app
from benchmarks.crowd import time_crowd
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
        (("larger", "--network", "alexnet"), "'alexnet' is unknown; choose one of Fashion-MNIST"),
        (("larger", "--nodes", "0"), "--nodes"),
        (("crowd", "--nodes", "20", "--kin", "20"), "--kin 20 must be fewer than --nodes 20"),
        (("crowd", "--steps", "6"), "--steps"),
        (
            ("everyone", "letters"),
            "'letters' is unknown; choose one of digits, fashion-mnist, crowd",
        ),
        (("everyone", "digits", "--synchronizations", "0"), "--synchronizations"),
        (("federation", "--nodes", "1"), "--nodes"),
        (("federation", "--parameters", "10"), "--parameters"),
    ],
)
def test_mistakes_are_named_before_anything_runs(arguments, message):
    assert message in refused(*arguments)


def test_the_cost_of_many_nodes_is_measured(monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as for every process that a command starts
    found = probe({"probe": "scaling", "nodes": 8, "points": 50, "seconds": 0.1})
    assert found["data_megabytes"] == pytest.approx(8 * 50 * 784 / 1e6)
    assert found["node_step_microseconds"] > 0
    assert found["peak_megabytes"] > found["data_megabytes"]


def test_a_second_process_does_not_compile_again(tmp_path):
    network, cache = "Fashion-MNIST", str(tmp_path)
    settings = {"probe": "compilation", "network": network, "cache": cache, "tasks": ["ditto"]}
    first, *others = (sum(probe(settings)["seconds"].values()) for _ in range(3))
    assert min(others) < 0.75 * first  # the least: another process may have disturbed one of them


def test_a_probe_that_fails_says_why(tmp_path):
    with pytest.raises(FedkinError, match="no such network"):
        probe({"probe": "compilation", "network": "no such network", "cache": str(tmp_path)})


@pytest.mark.slow
def test_steps_in_a_crowd_are_timed():
    lines = []
    found = time_crowd(nodes=24, kin=4, steps=8, points=50, on_step=lines.append)
    assert len(lines) == 16
    assert found.share == pytest.approx(found.medians[0] / found.medians[1])
    assert [step.nodes_asked for step in found.everyone] == [24] * 8
    assert found.some[-1].nodes_asked < 24
    assert found.some[-1].kin_weight > 0.9
    # The steps themselves are the same until nodes without weight are no longer asked.
    assert found.some[2].kin_weight == pytest.approx(found.everyone[2].kin_weight, abs=1e-4)
