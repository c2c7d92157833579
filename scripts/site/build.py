"""Build the documentation site: `python scripts/site/build.py --out site [--gallery DIR]`.

The pages are the Markdown files of the repository, copied with the images beside them, and two pages of
reference that are made of the package: its public names, and its commands. A broken link is an error.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from gallery import GALLERY

import fedkin
from fedkin.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/images/*",
    "examples/*/*",
    "reproduction/*.md",
    "reproduction/*/*.md",
)
"""What is copied."""
LINKED = (
    "LICENSE",
    "reproduction/*.csv",
    "reproduction/*/*.csv",
    "reproduction/*/*.toml",
    "reproduction/*/*/tuning.csv",
    "reproduction/figures/*",
    "reproduction/*/figures/*",
)
"""What pages show or link to."""

EXAMPLE = re.compile(r"^(?:([^\n`]*:) )?(fedkin (?:.|\n(?!\n))*)", re.M)
"""An example in the help of a command: it begins a paragraph and ends with it."""

ALONE = "---\nhide: [navigation]\n---\n"
"""What a page begins with that is the only one of its section."""

GROUPS = {
    "Questions": ("fit", "fit_all", "advise"),
    "Answers": ("Result", "Collaboration", "Advice", "load", "results"),
    "Methods and solvers": (
        "Bilevel",
        "ConjugateGradients",
        "LocalSvrgSolver",
        "NeumannSeries",
        "AdjointSolver",
        "TheoryBilevel",
        "FedAvg",
        "LocalTraining",
        "Ditto",
        "PFedMe",
        "Method",
    ),
    "scikit-learn": ("FederatedClassifier", "FederatedRegressor", "OwnerSplit"),
}
"""The public names in the order of the page; what is not named here comes last."""


def main() -> None:
    """Build the site from a copy of the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"), help="where the site is written")
    parser.add_argument("--gallery", type=Path, help="reports to show: what gallery.py has written")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    with tempfile.TemporaryDirectory() as directory:
        pages = Path(directory, "pages")
        copy_pages(pages)
        (pages / "reference").mkdir()
        (pages / "reference" / "python.md").write_text(python_page(), encoding="utf-8")
        (pages / "reference" / "command-line.md").write_text(command_page(), encoding="utf-8")
        (pages / "gallery").mkdir()
        (pages / "gallery" / "README.md").write_text(
            gallery_page(arguments.gallery, pages / "gallery"), encoding="utf-8"
        )
        (pages / "assets").mkdir()
        for name in ("iframe-worker.js", "site.css"):
            shutil.copy(Path(__file__).with_name(name), pages / "assets")
        start = pages / "README.md"
        start.write_text(ALONE + start.read_text(encoding="utf-8"), encoding="utf-8")
        settings = Path(directory, "mkdocs.yml")
        shutil.copy(Path(__file__).with_name("mkdocs.yml"), settings)
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        command += ["--config-file", str(settings), "--site-dir", str(out)]
        status = subprocess.run(command, check=False).returncode
    if status:
        sys.exit(status)
    print(f"written to {out}")


def copy_pages(target: Path) -> None:
    """Copy what the site shows, each to the same place as in the repository."""
    for pattern in (*PAGES, *LINKED):
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)


def gallery_page(reports: Path | None, target: Path) -> str:
    """Copy the reports to the target, and return the page that links to them."""
    lines = [
        "# Gallery of reports",
        "",
        "Every command that learns something writes `report.html`: one page that needs no network and can be",
        "sent on. These are such pages, as the commands below have written them.",
        "",
    ]
    if reports is None:
        lines += ["This copy of the site was built without them: `make docs` adds them.", ""]
    for report in GALLERY:
        title = report.title
        if reports is not None:
            shutil.copy(reports / f"{report.name}.html", target)
            title = f"[{title}]({report.name}.html)"
        lines += [f"## {title}", "", report.about, "", f"    {report.command}", ""]
    lines += ["[Looking at results](../docs/report.md) explains what is on the pages.", ""]
    return "\n".join(lines)


def python_page() -> str:
    """Return the reference of the public names, for mkdocstrings to fill."""
    grouped = {name for names in GROUPS.values() for name in names}
    further = tuple(
        name for name in fedkin.__all__ if name not in grouped and name != "__version__"
    )
    lines = ["# Python", "", "All of this is in the package `fedkin`.", ""]
    for title, names in {**GROUPS, "Further": further}.items():
        lines += [f"## {title}", ""]
        for name in names:
            found = getattr(fedkin, name)
            lines += [f"::: {found.__module__}.{name}", ""]
    return "\n".join(lines)


def command_page() -> str:
    """Return the reference of all commands."""
    group: Any = typer.main.get_command(app)
    group.load_all()
    lines = [
        "# Command line",
        "",
        "Every command ends bad input with one line that says what to do, and exit status 2.",
        "",
    ]
    for path, command in _commands(group, ("fedkin",)):
        about = EXAMPLE.sub(_as_code, command.help or "")
        lines += [f"## `{' '.join(path)}`", "", *about.split("\n"), ""]
        arguments = " ".join(
            each.make_metavar(context)
            for context in [_context(command, path)]
            for each in command.params
            if each.param_type_name == "argument"
        )
        lines += [f"    {' '.join(path)} [OPTIONS] {arguments}".rstrip(), ""]
        options = [
            each for each in command.params if each.param_type_name == "option" and each.help
        ]
        if options:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{'`, `'.join(each.opts)}` | {_cell(each.help)} |" for each in options]
            lines.append("")
    return "\n".join(lines)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if not hasattr(command, "commands"):
            yield (*path, name), command
        else:
            if command.invoke_without_command:
                yield (*path, name), command
            yield from _commands(command, (*path, name))


def _as_code(found: re.Match[str]) -> str:
    introduction = f"{found[1]}\n\n" if found[1] else ""
    return f"{introduction}    {' '.join(found[2].split())}"


def _context(command: Any, path: tuple[str, ...]) -> Any:
    return command.make_context(" ".join(path), [], resilient_parsing=True)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
