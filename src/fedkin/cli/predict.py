"""`fedkin predict`: the model of a fit, applied to new rows."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from fedkin.cli.options import (
    ColumnsOption,
    ForceOption,
    NoHeaderOption,
    SeparatorOption,
    refuse_csv_options,
    table_format,
)
from fedkin.cli.output import JsonOption, print_json, print_note, print_warning
from fedkin.data.column_choice import check_new_table
from fedkin.data.preprocessing import Preprocessing, Quantity, transform, unknown_categories
from fedkin.data.tables import read_table
from fedkin.errors import InputError
from fedkin.files import write_atomically
from fedkin.messages import listing
from fedkin.training import result_directory
from fedkin.training.result import load


def predict(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A result of fedkin fit or federation run.")
    ],
    new: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CSV or Parquet file; it needs no label.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="A CSV file for the predictions; default: print them."
        ),
    ] = None,
    columns: ColumnsOption = None,
    no_header: NoHeaderOption = False,
    separator: SeparatorOption = ",",
    force: ForceOption = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse rows without a column of the model; without it, the column counts as missing.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Predict the label of new rows with the model of a fit: one line per row, in their order."""
    result_directory.check_result(directory)
    if out is not None:
        _check_out(out, new, force)
    elif force:
        raise InputError("--force replaces the file of --out: add --out FILE, or leave --force out")
    refuse_csv_options(context, [new])
    preprocessing = Preprocessing.load(directory / result_directory.PREPROCESSING)
    needed = tuple(column.name for column in preprocessing.columns)
    written = replace(table_format(columns, no_header, separator), only=needed)
    table = read_table(new, "the new table", written)
    names = [*table.columns, *table.dropped]
    for line in check_new_table(f"the new table ({new})", names, needed, strict=strict):
        print_warning(line)
    features = transform(table, preprocessing)
    for name, categories in unknown_categories(table, preprocessing).items():
        print_note(
            f"note: column '{name}' holds {listing(categories)}, which no node had; treated as missing"
        )
    predictions = _predictions(directory / result_directory.MODEL, features, preprocessing)
    if out is not None:
        write_atomically(out, predictions.to_csv(index=False).encode())
        print_note(f"{len(predictions)} predictions written to {out}")
    if json:
        print_json(
            {
                "label": preprocessing.label.name,
                "out": None if out is None else str(out),
                "predictions": predictions.to_dict(orient="records"),
            },
            schema="predict/1",
        )
    elif out is None:
        sys.stdout.write(predictions.to_csv(index=False))


def _check_out(out: Path, new: Path, force: bool) -> None:
    if out.resolve() == new.resolve():
        raise InputError(f"--out {out} is the file to read; choose another")
    if out.is_dir():
        raise InputError(f"--out {out} is a directory; name a file")
    if out.exists() and not force:
        raise InputError(f"{out} exists; choose another --out, or replace it with --force")
    if not out.absolute().parent.is_dir():
        raise InputError(f"there is no directory {out.absolute().parent} to write {out.name} in")


def _predictions(model: Path, features: np.ndarray, preprocessing: Preprocessing) -> pd.DataFrame:
    """Return one prediction per row and, for classes, the probability of each."""
    result = load(model)
    rows = np.arange(1, len(features) + 1)
    label = preprocessing.label
    if isinstance(label, Quantity):
        return pd.DataFrame(
            {"row": rows, "prediction": label.restore(np.asarray(result.predict(features)))}
        )
    probabilities = np.asarray(result.predict_proba(features), dtype=np.float64)
    chosen = [label.classes[index] for index in np.argmax(probabilities, axis=1)]
    return pd.DataFrame(
        {"row": rows, "prediction": chosen}
        | {
            f"probability_{name}": probabilities[:, index]
            for index, name in enumerate(label.classes)
        }
    )
