"""Make the reports that the site shows: `python scripts/site/gallery.py --out DIR`.

The tables and their commands are those of docs/tutorial-tables.md; the study is below.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-tables.md"
STUDY = """\
dataset = "digits"
setting = 2
model = "logistic"
method = ["bilevel", "fedavg", "ditto", "local"]
seed = [0, 1]
synchronizations = 30
"""


@dataclass(frozen=True)
class Report:
    """A report of the gallery."""

    name: str
    title: str
    about: str
    command: str
    """As the page shows it."""
    directory: str
    """Where the command writes `report.html`."""


GALLERY = (
    Report(
        "advise",
        "Should I join?",
        "The owner of 40 patients asks whether learning with four hospitals pays "
        "([tutorial](../docs/tutorial-tables.md)).",
        "fedkin advise --node north.csv --node east.csv … --own own.csv …",
        "advice",
    ),
    Report(
        "fit",
        "Whom should I learn with?",
        "The same hospitals: the weights, how they were found, and the scores.",
        "fedkin fit --node north.csv --node east.csv … --validation own.csv …",
        "result",
    ),
    Report(
        "map",
        "Who helps whom?",
        "The same, asked by every hospital: the matrix of weights, groups, and who gains.",
        "fedkin map --node north.csv --node east.csv --node south.csv --node west.csv …",
        "map",
    ),
    Report(
        "study",
        "Which method is best?",
        "Four methods on handwritten digits at 15 nodes, with two seeds.",
        "fedkin run study.toml --out study",
        "study",
    ),
)
COMMAND = re.compile(r"^    fedkin ((?:[^\n]*\\\n)*[^\n]*)$", re.M)


def main() -> None:
    """Run the commands, and keep their reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the reports are written")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    page = TUTORIAL.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
            run([sys.executable, "-c", block])
        for command in COMMAND.findall(page):
            run([sys.executable, "-m", "fedkin", *shlex.split(command.replace("\\\n", " "))])
        Path("study.toml").write_text(STUDY, encoding="utf-8")
        run([sys.executable, "-m", "fedkin", "run", "study.toml", "--out", "study"])
        for report in GALLERY:
            shutil.copy(Path(report.directory, "report.html"), out / f"{report.name}.html")


def run(command: list[str]) -> None:
    """Run a command; show what it says only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
