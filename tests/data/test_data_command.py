"""`fedkin data` as it is typed: answers on stdout, mistakes in one line with exit status 2."""

import json
import sys
from pathlib import Path

import pytest

from fedkin.cli.app import main

SHOW = ["data", "show", "digits", "--setting", "2"]


@pytest.fixture
def fedkin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedkin", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        output = capsys.readouterr()
        return int(end.value.code or 0), output.out, output.err

    return run


def test_list_without_data(fedkin, no_data: None) -> None:
    status, output, _ = fedkin("data", "--json")
    assert status == 0
    listed = {each["name"]: each for each in json.loads(output)["data_sets"]}
    assert listed["digits"]["available"]
    assert listed["mnist"]["status"] == "from the hub"
    assert not any(each["available"] for name, each in listed.items() if name != "digits")
    status, output, _ = fedkin("data")
    assert status == 0
    assert "tiny-imagenet32" in output


def test_list_with_data(fedkin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10-jpeg").mkdir()
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    _, output, _ = fedkin("data", "--json")
    listed = {each["name"]: each for each in json.loads(output)["data_sets"]}
    assert listed["cifar10"]["status"] == "yes, as cifar10-jpeg"
    assert not listed["mnist"]["available"]


def test_show_answers_in_json_and_files(fedkin, tmp_path: Path) -> None:
    status, output, errors = fedkin(*SHOW, "--target", "majority", "--out", "here", "--json")
    assert (status, errors) == (0, "")
    answer = json.loads(output)
    assert answer["permutation"] == {"2": 0, "0": 1, "1": 5, "5": 2}
    assert answer["images"]["majority-10"] == 200
    for name, chance in (("minority-1", 0.42), ("majority-1", 0.12), ("validation", 0.12)):
        size = answer["images"][name]
        slack = 4 * (chance * (1 - chance) / size) ** 0.5
        assert abs(answer["merged_class_shares"][name][0] - chance) <= slack
    for name in ("federation.png", "federation.svg", "federation.json"):
        assert (tmp_path / "here" / name).stat().st_size > 1000


def test_show_in_words(fedkin) -> None:
    status, output, errors = fedkin(*SHOW, "--minority-nodes", "1", "--majority-nodes", "2")
    assert status == 0
    assert "majority-2" in output
    assert "majority-3" not in output
    assert "C4: 5, 7, 9" in output
    assert "0→1, 1→5, 2→0, 5→2" in output
    assert "federation.png" in errors


def test_bad_nodes_are_shown(fedkin) -> None:
    bad = ["--bad", "noise-labels", "--bad-nodes", "minority-1,majority-2"]
    small = [*SHOW, "--minority-nodes", "1", "--majority-nodes", "2", *bad, "--bad-share", "0.5"]
    status, output, _ = fedkin(*small, "--json")
    assert status == 0
    told = {"kind": "noise-labels", "nodes": ["minority-1", "majority-2"], "share": 0.5}
    assert json.loads(output)["bad"] == told
    _, output, _ = fedkin(*small)
    assert "Bad: 2 nodes with noise labels (50%) (minority-1, majority-2)" in output


def test_own_images_and_own_setting(fedkin, parquet_set: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        "merged_classes = [[0], [1]]\nminority = [0.9, 0.1]\nmajority = [0.1, 0.9]\n"
        "train_size = 40\nvalidation_size = 10\ntest_size = 10\n"
    )
    status, output, _ = fedkin("data", "show", str(parquet_set), "--setting", "own.toml", "--json")
    assert status == 0
    assert json.loads(output)["classes"] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "show", "digitz", "--setting", "1"], "did you mean digits"),
        (["data", "show", "./nothing", "--setting", "1"], "no directory ./nothing"),
        (["data", "show", "digits", "--setting", "own.toml"], "no file own.toml with a setting"),
        (["data", "show", "heart-disease", "--setting", "1"], "has tables, not images"),
        (["data", "show", "owner/set", "--setting", "1"], "write a setting for it in a TOML"),
        (["data", "show", "digits"], "--setting 1, 2, 3 or 4 (or a TOML file), or --partition"),
        (["data", "show"], "Missing argument"),
        (["data", "show", "digits", "--setting", "5"], "no setting 5: choose 1, 2, 3 or 4"),
        (["data", "show", "digits", "--setting", "two"], "must be 1, 2, 3, 4 or a .toml file"),
        ([*SHOW, "--target", "min"], "choose one of minority, majority"),
        ([*SHOW, "--seed", "-3"], "-3 must be from 0 to"),
        ([*SHOW, "--seed", "x"], "Invalid value for '--seed'"),
        ([*SHOW, "--train-size", "0"], "at least one image"),
        ([*SHOW, "--minority-nodes", "0", "--majority-nodes", "0"], "at least one is needed"),
        (["data", "show", "mnist", "--setting", "1", "--data", "nowhere"], "not a directory"),
        (["data", "--json", "show", "digits", "--setting", "1"], "options after the command"),
        (["data", "sho"], "No such command 'sho'"),
        ([*SHOW, "--bad-nodes", "minority-1"], "--bad-nodes is of no use without --bad"),
        ([*SHOW, "--bad", "noise-labels"], "--bad needs --bad-nodes"),
        ([*SHOW, "--bad", "absent", "--bad-nodes", "x"], "other kinds change no data"),
        ([*SHOW, "--bad", "noise-labels", "--bad-nodes", "minor-1"], "did you mean minority-1"),
        ([*SHOW, "--bad", "noise-labels", "--bad-nodes", "x,x"], "names one node twice"),
        ([*SHOW, "--bad", "noise-labels", "--bad-nodes", "x", "--bad-share", "2"], "at most 1"),
        (["data", "--data", "nowhere"], "nowhere is not a directory"),
    ],
)
def test_mistakes(fedkin, no_data: None, arguments: list[str], message: str) -> None:
    status, output, errors = fedkin(*arguments)
    assert (status, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_out_that_is_a_file(fedkin, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    status, _, errors = fedkin(*SHOW, "--out", "taken")
    assert status == 2
    assert "cannot make the directory taken" in errors
