"""Runs the examples of a page: its Python blocks in order, in one namespace, and its `fedkin` commands.

`python tests/documents.py README.md` writes what the examples print into the page.
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.M | re.S
)
COMMAND = re.compile(r"^    (fedkin .*(?:\\\n.*)*)$", re.M)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Example:
    """A Python block of a page, and what it is said to print."""

    code: str
    printed: str


def examples(page: str) -> list[Example]:
    """Return the Python blocks of a page."""
    return [Example(found["code"], found["printed"] or "") for found in BLOCK.finditer(page)]


def commands(page: str) -> list[list[str]]:
    """Return the `fedkin` commands of a page."""
    return [shlex.split(line.replace("\\\n", " ")) for line in COMMAND.findall(page)]


def run_examples(page: str) -> list[str]:
    """Return what each Python block prints."""
    namespace: dict[str, object] = {}
    printed = []
    for example in examples(page):
        with redirect_stdout(io.StringIO()) as output:
            exec(compile(example.code, "an example", "exec"), namespace)  # noqa: S102
        printed.append(output.getvalue())
    return printed


def run_command(command: list[str], directory: Path) -> str:
    """Run a command; return what it prints, and fail if it does."""
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", *command[1:]],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout


def write_tables(directory: Path) -> None:
    """Write the files that pages name: nodes, the owner's rows, and a table with a column of sites."""
    rows = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "outcome"})
    rows = rows.iloc[:, [0, 1, 4, 5, -1]]
    rows.columns = ["radius", "texture", "smoothness", "compactness", "outcome"]
    names = ["a", "b", "c", "own", "new"]
    parts = {name: rows.iloc[100 * place :][:100] for place, name in enumerate(names)}
    parts["new"] = parts["new"].drop(columns="outcome")
    for name, part in parts.items():
        part.to_csv(directory / f"{name}.csv", index=False)
    sites = [parts[name].assign(hospital=name) for name in ("a", "b", "c")]
    pd.concat(sites).to_csv(directory / "table.csv", index=False)


def differs(said: str, printed: str) -> bool:
    """Tell whether words differ, or numbers by more than machines do."""
    if NUMBER.sub("#", said).split() != NUMBER.sub("#", printed).split():
        return True
    mine, theirs = ([float(each) for each in NUMBER.findall(text)] for text in (said, printed))
    return not np.allclose(mine, theirs, rtol=0.02, atol=0.011)


def main(path: Path) -> None:
    """Write what a page's examples print into the page."""
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        printed = iter(run_examples(page))

    def block(found: re.Match[str]) -> str:
        output = next(printed)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    path.write_text(BLOCK.sub(block, page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
