"""`fedkin run`, `reproduce` and `demo`: what newcomers get wrong, and whose parameters are taken."""

import json

import pytest

STUDY = 'dataset = "digits"\nsetting = 2\nmethod = "local"\nmodel = "logistic"\nsteps = 1\n'


@pytest.fixture
def study(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml", "--out", "r"], "there is no file none.toml"),
        (["study.toml"], "--out"),
        (["study.toml", "--out", "r", "--jobs", "0"], "--jobs"),
        (["study.toml", "--out", "study.toml"], "study.toml is a file: choose"),
        (["study.toml", "--out", "."], "has other files: choose a new or empty directory"),
        (["study.toml", "--out", "r", "--data", "nowhere"], "nowhere is not a directory"),
        (["study.toml", "--out", "r", "--dat", "."], "--data"),
        (["broken.toml", "--out", "r"], "not valid TOML"),
        (["typo.toml", "--out", "r"], "unknown key metod; did you mean method?"),
        (["method.toml", "--out", "r"], "'fedprox' is unknown"),
        (["data.toml", "--out", "r"], "digitz"),
        (
            ["study.toml", "--out", "r", "--cluster", "here"],
            "'here' is neither local nor an address",
        ),
        (["study.toml", "--out", "r", "--cluster", "ray://host"], "is neither local nor"),
        (["study.toml", "--out", "r", "--cluster", "ray://host:many"], "is neither local nor"),
        (["study.toml", "--out", "r", "--cluster", "ray://[::1:10001"], "is neither local nor"),
        (
            ["study.toml", "--out", "r", "--cluster", "http://host:10001"],
            "such as ray://HOST:10001",
        ),
        (
            ["study.toml", "--out", "r", "--cluster", "ray://127.0.0.1:1"],
            "nobody answers at ray://127",
        ),
    ],
)
def test_mistakes_in_run(refused, study, tmp_path, arguments, message):
    (tmp_path / "broken.toml").write_text("dataset = ")
    (tmp_path / "typo.toml").write_text(STUDY.replace("method", "metod"))
    (tmp_path / "method.toml").write_text(STUDY.replace("local", "fedprox"))
    (tmp_path / "data.toml").write_text(STUDY.replace("digits", "digitz"))
    assert message in refused("run", *arguments)
    assert not (tmp_path / "r").exists()


def test_a_study_is_continued_only_with_resume(command, refused, study):
    assert command("run", "study.toml", "--out", "r").status == 0
    line = refused("run", "study.toml", "--out", "r")
    assert "already has a study: add --resume to continue it" in line
    assert command("run", "study.toml", "--out", "r", "--resume").status == 0


def test_run_takes_parameters_from_the_data_and_reproduce_takes_the_paper_s(
    command, study, tmp_path
):
    options = ["--dataset", "digits", "--setting", "2", "--target", "minority", "--seeds", "1"]
    options += ["--method", "local", "--synchronizations", "1", "--period", "1"]
    assert command("run", "study.toml", "--out", "run").status == 0
    assert command("reproduce", *options, "--out", "reproduce").status == 0
    for out, preset in (("run", "automatic"), ("reproduce", "paper")):
        (config,) = (tmp_path / out / "runs").glob("*/config.json")
        assert json.loads(config.read_text())["config"]["settings"]["preset"] == preset
        recorded = json.loads((tmp_path / out / "study.json").read_text())["study"]
        assert recorded["settings"]["preset"] == preset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "--seed"),
        (["--seed", "one"], "--seed"),
        (["--out", "study.toml"], "study.toml is a file: choose"),
        (["--out", "."], "has other files"),
        (["--sed", "1"], "--seed"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_mistakes_in_demo(refused, study, arguments, message):
    assert message in refused("demo", *arguments)
