"""Options: none is ignored, and the same option means the same everywhere."""

import re
from pathlib import Path

import pandas as pd
import pytest
import typer.main

import fedkin
from fedkin.cli.app import app

CSV = "value,outcome\n" + "".join(f"{n},{'ill' if n % 3 else 'well'}\n" for n in range(30))
TABLES = ["--node", "a.csv", "--node", "b.csv", "--label", "outcome"]
MOVING_OUT = ("bench", "compare", "theory")
"""Commands that are about to leave the package."""


@pytest.fixture
def files(tmp_path):
    for name in ("a", "b", "own"):
        (tmp_path / f"{name}.csv").write_text(CSV)
        pd.read_csv(tmp_path / f"{name}.csv").to_parquet(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize(
    "given",
    [
        ["--label", "outcome"],
        ["--positive", ">0"],
        ["--categorical", "value"],
        ["--drop", "value"],
        ["--missing", "value=0"],
        ["--columns", "a,b"],
        ["--no-header"],
        ["--separator", ";"],
        ["--separator", ","],
        ["--task", "classification"],
        ["--validation", "own.csv"],
        ["--test", "own.csv"],
        ["--target-node", "a"],
        ["--validation-fraction", "0.3"],
        ["--test-fraction", "0.3"],
    ],
    ids=" ".join,
)
def test_init_of_images_refuses_table_options(refused, files, tmp_path, given):
    pytest.importorskip("flwr", reason="needs the extra flower")
    for nodes in ("4", "0"):
        line = refused("federation", "init", "f", "--nodes", nodes, *given)
        assert f"error: {given[0]} is for nodes with tables: leave it out" in line
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    "given", [["--dataset", "digits"], ["--setting", "2"], ["--target", "minority"]], ids=" ".join
)
def test_init_of_tables_refuses_image_options(refused, files, tmp_path, given):
    pytest.importorskip("flwr", reason="needs the extra flower")
    line = refused("federation", "init", "f", *TABLES, "--validation", "own.csv", *given)
    assert f"error: {given[0]} is for nodes with images: leave it out" in line
    line = refused("federation", "init", "f", "--nodes", 0, *given)
    assert f"error: {given[0]} is for nodes on this machine" in line
    assert not (tmp_path / "f").exists()


def test_init_refuses_a_seed_that_nothing_is_drawn_with(command, refused, files):
    pytest.importorskip("flwr", reason="needs the extra flower")
    line = refused("federation", "init", "f", *TABLES, "--validation", "own.csv", "--seed", 1)
    assert "--seed decides which rows --target-node holds out" in line
    assert "--seed is for nodes" in refused("federation", "init", "f", "--nodes", 0, "--seed", 1)
    used = command("federation", "init", "f", *TABLES, "--target-node", "a", "--seed", 1)
    assert used.status == 0, used.err


@pytest.mark.parametrize("given", [["--columns", "a,b"], ["--no-header"], ["--separator", ";"]])
def test_options_for_csv_are_refused_without_csv(refused, files, given):
    parquet = ["--node", "a.parquet", "--node", "b.parquet", "--validation", "own.parquet"]
    line = refused("fit", *parquet, "--label", "outcome", "--out", "r", *given)
    assert f"error: {given[0]} is for CSV files, and there is none" in line


def test_an_option_for_csv_is_used_where_one_file_is_csv(refused, files):
    mixed = ["--node", "a.parquet", "--node", "b.csv", "--validation", "own.parquet"]
    line = refused("fit", *mixed, "--label", "outcome", "--out", "r", "--no-header")
    assert "is for CSV files" not in line  # it changes how b.csv is read


def test_fit_refuses_a_cap_that_the_method_does_not_use(refused, files):
    fit = ["fit", *TABLES, "--validation", "own.csv", "--out", "r", "--method", "fedavg"]
    assert "cap" in refused(*fit, "--cap", 0.6)


def test_predict_refuses_force_without_a_file(command, refused, files):
    fit = ["fit", *TABLES, "--validation", "own.csv", "--out", "r", "--method", "local"]
    assert command(*fit).status == 0
    assert "--force replaces the file of --out" in refused("predict", "r", "own.csv", "--force")
    assert "is for CSV files" in refused("predict", "r", "own.parquet", "--no-header")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", *TABLES, "--validation", "own.csv", "--out", "r"],
        ["reproduce", "--dataset", "digits", "--out", "r"],
        ["federation", "run", "trial", "--out", "r"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unknown_method_is_refused_alike_everywhere(refused, files, arguments):
    near = refused(*arguments, "--method", "bi-level")
    assert near == "error: --method: 'bi-level' is unknown; did you mean bilevel?\n"
    far = refused(*arguments, "--method", "xyz")
    assert far.startswith("error: --method: 'xyz' is unknown; choose one of bilevel, ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "show", "digits", "--setting", "2"],
        ["reproduce", "--dataset", "digits", "--out", "r"],
        ["federation", "init", "f", "--nodes", "2"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unknown_target_is_refused_alike_everywhere(refused, arguments):
    line = refused(*arguments, "--target", "minorty")
    assert line == "error: --target: 'minorty' is unknown; did you mean minority?\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--model", "boosting"],
            "--model: 'boosting' is unknown; choose one of logistic, ridge, mlp, cnn",
        ),
        (["--steps", "0"], "--steps"),
        (["--synchronizations", "many"], "--synchronizations"),
        (["--resum"], "--resume"),
        (["--method"], "--method"),
    ],
)
def test_mistakes_in_federation_run(refused, given, message):
    assert message in refused("federation", "run", "trial", "--out", "r", *given)


def commands(group, path=()):
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
            if each.invoke_without_command:
                yield (*path, name), each
        else:
            yield (*path, name), each


def whole_command_line():
    group = typer.main.get_command(app)
    group.load_all()
    return group


def every_option():
    found = {}
    for path, each in commands(whole_command_line()):
        if path[0] in MOVING_OUT:
            continue
        for parameter in each.params:
            for name in parameter.opts:
                if name.startswith("--") and name != "--help":
                    found.setdefault(name, {})[" ".join(path)] = parameter
    return found


ONE_MEANING = (
    "--method",
    "--target",
    "--data",
    "--json",
    "--seed",
    "--resume",
    "--force",
    "--label",
)
ONE_MEANING += ("--steps", "--synchronizations", "--solver", "--jobs", "--node", "--task")


@pytest.mark.parametrize("name", ONE_MEANING)
def test_the_same_option_has_the_same_help_everywhere(name):
    helps = {
        parameter.help.removesuffix(" May be repeated.")
        for parameter in every_option()[name].values()
    }
    assert len(helps) == 1


def test_every_option_has_a_help_text_and_every_command_json():
    for name, parameters in every_option().items():
        for command, parameter in parameters.items():
            assert parameter.help or parameter.hidden, f"{command} {name}"
    printing = {" ".join(path) for path, _ in commands(whole_command_line())}
    printing -= {name for name in printing if name.split()[0] in MOVING_OUT}
    # These two become another program, in the foreground.
    assert printing - set(every_option()["--json"]) == {"federation node", "federation superlink"}


def test_progress_is_never_read_from_log_lines():
    source = Path(fedkin.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert "log.txt" not in text
        if path.relative_to(source).parts[0] in ("cli", "studies", "training"):
            assert re.search(r"re\.(compile|search|match|fullmatch|findall)\(", text) is None, path


def test_every_argument_and_option_is_explained():
    """Typer 0.20 loses the help of arguments with click 8.4 and later."""
    silent = [
        (*path, parameter.name)
        for path, each in commands(whole_command_line())
        for parameter in each.params
        if not parameter.help and not getattr(parameter, "hidden", False)
    ]
    assert silent == []
