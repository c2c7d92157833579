"""Build a release and check it: `make release`. Nothing is uploaded.

`python scripts/release.py check` looks at the tree and the version. `python scripts/release.py build` makes
wheel and source distribution in dist/, checks their content and metadata, and runs the demo of the wheel in
an environment that has nothing else.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
SOURCE_PARTS = {
    "src",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "pyproject.toml",
    "PKG-INFO",
}
"""What a source distribution has at its top; `.gitignore` is hatchling's own addition."""
DATA = {".csv", ".parquet", ".npz", ".gz", ".jsonl", ".png", ".svg", ".fedkin", ".db"}
"""Endings of data and results, which neither distribution has."""


class ReleaseError(Exception):
    """What must be mended before the release."""


def check_tree(root: Path = ROOT) -> None:
    """Refuse a tree with changes or files that are not committed."""
    command = ["git", "status", "--porcelain"]
    changed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    if changed:
        raise ReleaseError(f"commit these first:\n{changed}")


def check_version(root: Path = ROOT) -> str:
    """Return the version, which the package, the changelog and CITATION.cff must all name."""
    texts = {
        name: (root / name).read_text(encoding="utf-8")
        for name in ("src/fedkin/version.py", "CHANGELOG.md", "CITATION.cff")
    }
    patterns = {
        "src/fedkin/version.py": r'^__version__ = "(\d+\.\d+\.\d+)"$',
        "CHANGELOG.md": r"\A# Changelog\n\n## (\d+\.\d+\.\d+) \(\d{4}-\d{2}-\d{2}\)$",
        "CITATION.cff": r"^version: (\d+\.\d+\.\d+)$",
    }
    found = {name: re.search(patterns[name], texts[name], re.MULTILINE) for name in texts}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise ReleaseError(
            f"{missing[0]} names no released version: the changelog begins with '## 1.2.3 (2026-11-19)', and "
            "the version has no ending such as .dev0"
        )
    versions = {name: match[1] for name, match in found.items() if match is not None}
    if len(set(versions.values())) > 1:
        raise ReleaseError(f"the versions differ: {versions}")
    return versions["CHANGELOG.md"]


def build(out: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the source distribution; return their files."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("fedkin-*"):
        old.unlink()
    _run([sys.executable, "-m", "hatchling", "build", "--directory", str(out)], root)
    (wheel,), (source,) = out.glob("fedkin-*.whl"), out.glob("fedkin-*.tar.gz")
    return wheel, source


def check_content(wheel: Path, source: Path) -> None:
    """Refuse a wheel or a source distribution with anything but the package and what describes it."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = [PurePosixPath(name) for name in archive.namelist()]
    with tarfile.open(source) as archive:
        in_source = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
    foreign = {path.parts[0] for path in in_source if path.parts} - SOURCE_PARTS - {".gitignore"}
    foreign |= {
        path.parts[0]
        for path in in_wheel
        if path.parts[0] not in ("fedkin", "fedkin_start.py") and ".dist-info" not in path.parts[0]
    }
    data = [str(path) for path in [*in_wheel, *in_source] if path.suffix in DATA]
    if foreign or data:
        raise ReleaseError(f"these do not belong into a distribution: {sorted(foreign) + data}")


def check_metadata(wheel: Path, source: Path) -> None:
    """Let twine check the metadata as an index would."""
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)], ROOT)


def try_in_bare_environment(
    distribution: Path, python: str = sys.executable, constraints: Path | None = None
) -> str:
    """Install a distribution into a new environment, run the demo there, and return what it printed."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        if python == sys.executable:
            venv.create(place / "bare", with_pip=True)
        else:
            _run([python, "-m", "venv", "bare"], place)
        binaries = place / "bare" / "bin"
        pins = ["--constraint", str(constraints)] if constraints else []
        command = [
            binaries / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            *pins,
            distribution.absolute(),
        ]
        _run([*map(str, command), "--disable-pip-version-check"], place)
        return _run([str(binaries / "fedkin"), "demo"], place)


def _run(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Do one of the two halves of `make release`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("half", choices=["check", "build"])
    half = parser.parse_args().half
    try:
        version = check_version()
        check_tree()
        if half == "build":
            wheel, source = build(ROOT / "dist")
            check_content(wheel, source)
            check_metadata(wheel, source)
            shown = try_in_bare_environment(wheel, constraints=ROOT / "constraints.txt")
            print(*shown.splitlines()[-8:], sep="\n")
            print(f"fedkin {version} is ready: {wheel} and {source}; nothing was uploaded")
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
