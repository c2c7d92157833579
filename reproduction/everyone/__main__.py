"""Collect finished runs of the studies of everyone's question, and make their tables again.

fedkin run reproduction/everyone/digits.toml --out results-digits
python -m reproduction.everyone results-digits
"""

import sys
from pathlib import Path

import pandas as pd

from reproduction.everyone.results import RESULTS, TABLES, add_results, read_store, tables


def main() -> None:
    """Add the stores that are named to results.csv, and write tables.md."""
    results = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame()
    for directory in sys.argv[1:]:
        results = add_results(results, read_store(Path(directory)))
    if results.empty:
        sys.exit("there are no results yet: name the directories of one or more studies")
    results.to_csv(RESULTS, index=False)
    TABLES.write_text(tables(results), encoding="utf-8")
    sys.stdout.write(TABLES.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
