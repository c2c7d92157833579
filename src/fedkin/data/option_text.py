"""Options of tables that are written as text, on the command line or in a node's settings."""

import csv

from fedkin.errors import InputError


def parse_names(written: str | None) -> tuple[str, ...]:
    """Split a list of names at its commas; a name that contains a comma goes in quotation marks.

    >>> parse_names('age, sex, "blood pressure, mmHg"')
    ('age', 'sex', 'blood pressure, mmHg')
    """
    if written is None:
        return ()
    return tuple(name.strip() for name in next(csv.reader([written], skipinitialspace=True), []))


def parse_missing_codes(written: str | None) -> dict[str, float]:
    """Read which number stands for a missing value in which column.

    >>> parse_missing_codes("chol=0,trestbps=-9")
    {'chol': 0.0, 'trestbps': -9.0}
    """
    codes = {}
    for item in parse_names(written):
        name, _, code = item.rpartition("=")
        try:
            codes[name.strip()] = float(code)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--missing takes COLUMN=NUMBER, for example chol=0, not '{item}'")
    return codes


def parse_separator(written: str) -> str:
    """Return the separator of a CSV file: the character itself, or a tab for `tab`.

    >>> parse_separator("tab")
    '\\t'
    """
    return "\t" if written in {"tab", "\\t"} else written
