"""Runs the examples of a page in order and in one directory: its Python blocks, in one namespace, and its
`fedkin` commands.

`python tests/documents.py README.md` writes what the examples print into the page.
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(
    r"^(?:```python\n(?P<code>.*?)^```|    (?P<command>fedkin (?:[^\n]*\\\n)*[^\n]*))\n"
    r"(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.M | re.S,
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


LIVE = ("demo", "federation", "watch")
"""Commands with tests of their own, which start other processes."""


@dataclass(frozen=True)
class Example:
    """A Python block or a `fedkin` command of a page, and what it is said to print."""

    code: str | None
    command: list[str]
    printed: str | None
    """None for a command of which the page shows nothing."""

    @property
    def runs(self) -> bool:
        """Whether the quick tests run it."""
        return self.code is not None or self.command[1] not in LIVE


def examples(page: str) -> list[Example]:
    """Return the examples of a page in their order."""
    return [_example(found) for found in EXAMPLE.finditer(page)]


def _example(found: re.Match[str]) -> Example:
    command = shlex.split((found["command"] or "").replace("\\\n", " "))
    said = found["printed"]
    return Example(found["code"], command, said or "" if found["code"] else said)


def run_examples(page: str) -> Iterator[tuple[Example, str]]:
    """Run the examples in the current directory; yield each with what it prints."""
    namespace: dict[str, object] = {}
    for example in examples(page):
        if example.code is not None:
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(example.code, "an example", "exec"), namespace)  # noqa: S102
            yield example, output.getvalue()
        elif example.runs:
            yield example, run_command(example.command, Path())


def run_command(command: list[str], directory: Path) -> str:
    """Run a command; return what it prints, and fail if it does."""
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", *command[1:]],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"},
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
    """Write what a page's examples print into the page; of commands, where it has a place for it."""
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        write_tables(Path())
        printed = iter([output for _, output in run_examples(page)])

    def block(found: re.Match[str]) -> str:
        example = _example(found)
        if not example.runs:
            return found[0]
        said = found[0].removesuffix(f"\n```text\n{found['printed']}```\n")
        output = _tidy(next(printed))
        shown = output if example.printed is not None else ""
        return said + (f"\n```text\n{shown}```\n" if shown else "")

    path.write_text(EXAMPLE.sub(block, page), encoding="utf-8")


def _tidy(output: str) -> str:
    return "".join(
        f"{line.rstrip()}\n" for line in output.strip("\n").split("\n") if output.strip()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
