"""Which data sets are available, and what a federation made of one looks like."""

import typer

from fedkin.cli.data import listing, show

app = typer.Typer(
    help=__doc__,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(listing.list_data_sets)
app.command("show")(show.show)
