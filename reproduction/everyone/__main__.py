"""Print the results of the studies of everyone's question as Markdown.

fedkin run reproduction/everyone/digits.toml --out results-digits
python -m reproduction.everyone results-digits
"""

import sys
from pathlib import Path

from fedkin.report.everyone import SUMMARY_COLUMNS, Everyone, everyone_of, summary_entry
from fedkin.report.reading import read_record


def table(view: Everyone) -> str:
    """Return one cell's methods as a table, and what is known about its groups."""
    shown = [name for name in SUMMARY_COLUMNS if name != "std"]
    lines = [
        f"**{view.title}** ({view.seeds} seed{'s' if view.seeds > 1 else ''}, {len(view.nodes)} nodes)",
        "",
        f"| method | {' | '.join(SUMMARY_COLUMNS[name] for name in shown)} |",
        f"|---|{'---:|' * len(shown)}",
    ]
    for row in view.summaries:
        cells = [
            summary_entry(row.numbers[name], name) if name in row.numbers else "–" for name in shown
        ]
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    if view.within is not None and view.exact is not None:
        mean, deviation = view.within
        spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
        lines += [
            "",
            f"{view.learner} puts {100 * mean:.1f}{spread}% of the weight on nodes of the owner's group; the "
            f"groups were found exactly in {view.exact[0]} of {view.exact[1]} runs.",
        ]
    return "\n".join(lines)


def main() -> None:
    """Print every cell of the stores that are named."""
    if len(sys.argv) < 2:
        sys.exit("name the directories of one or more studies")
    for directory in sys.argv[1:]:
        record = read_record(Path(directory))
        text = "\n\n".join(table(view) for view in everyone_of(record))
        sys.stdout.write(f"{text}\n\n")
        if record.missing:
            sys.stdout.write(f"{len(record.missing)} runs of this study are missing.\n\n")


if __name__ == "__main__":
    main()
