"""The end of demo, fit and studies: a compact table, the weights as bars, and the path of the report."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedkin.cli.output import BAR_WIDTH, print_result, results, weight_bars
from fedkin.report import curves, findings
from fedkin.report.reading import Record, read_record
from fedkin.report.style import scenario_title
from fedkin.report.tables import entry, rows_by_cell, summary


def write_report(directory: Path) -> tuple[Record, Path]:
    """Read the results of a command, and write the page next to them."""
    from fedkin.report import html

    record = read_record(directory)
    return record, html.write_page(record, directory / html.NAME)


def print_study(record: Record, page: Path) -> None:
    """Show the results of a study."""
    results.print(_costs(record) if len(record.cells) == 1 else _accuracies(record))
    label = findings.main_label(record)
    if label is not None:
        results.print(f"\nThe weights of the nodes ({label}):\n", markup=False)
        results.print(_weights(record, label))
    results.print(f"\n{findings.weights_sentence(record, label)}", markup=False)
    results.print(findings.accuracy_sentence(record, findings.subject(record)), markup=False)
    print_path(page)


def print_path(page: Path) -> None:
    """Print the path of the report on its own line, so that it can be clicked or copied."""
    print_result(f"\nreport: {page}")


def _accuracies(record: Record) -> Table:
    """Show mean ± standard deviation over seeds: one row per cell, one column per method."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("test accuracy", no_wrap=True)
    for label in record.labels:
        table.add_column(Text(label), justify="right")
    several = len({cell.target for cell in record.cells}) > 1
    for cell, entries in rows_by_cell(summary(record), record):
        title = f"{Path(cell.dataset).name} {scenario_title(cell.setting).removeprefix('setting ')}"
        table.add_row(Text(f"{title} {cell.target}" if several else title), *map(_entry, entries))
    return table


def _entry(row: Any | None) -> Text:
    if row is None:
        return Text("–")
    return Text(entry(row.accuracy, row.deviation), style="bold" if row.best else "")


def _costs(record: Record) -> Table:
    """Compare methods in one cell: test accuracy (the best in bold), and the cost of a run."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("method")
    for title in ("test accuracy", "synchronizations", "MB up", "MB down", "seconds"):
        table.add_column(title, justify="right")
    rows: Iterable[Any] = summary(record).itertuples()
    for row in rows:
        table.add_row(
            Text(row.method),
            entry(row.accuracy, row.deviation),
            f"{row.synchronizations:,.0f}",
            f"{row.bytes_up / 1e6:.1f}",
            f"{row.bytes_down / 1e6:.1f}",
            f"{row.seconds:.1f}",
            style="bold" if row.best else None,
        )
    return table


def _weights(record: Record, label: str) -> Table:
    """Draw bars of nodes for one federation, otherwise the share of similar nodes in each cell."""
    learned = [cell for cell in record.cells if label in curves.learners(record, cell)]
    if len(learned) == 1:
        final = curves.final_weights(record, learned[0], label)
        similar = {
            name: alike
            for name, alike in zip(final.names, final.similar, strict=True)
            if alike is not None
        }
        weights = dict(zip(final.names, final.mean.tolist(), strict=True))
        return weight_bars(weights, similar=similar or None)
    table = Table(box=None, padding=(0, 1), show_header=False)
    for each in findings.shares(record, label):
        full = round(BAR_WIDTH * each.share)
        bar = Text("█" * full, style="green").append("░" * (BAR_WIDTH - full), style="dim")
        table.add_row(Text(each.cell.title), f"{each.share:.1%}", bar)
    return table
