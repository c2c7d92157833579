"""Lists written in one line: names at commas, and numbers that stand for a missing value."""

import csv

from fedkin.errors import InputError


def name_list(written: str | None) -> tuple[str, ...]:
    """Split a list of names at its commas; a name with a comma is put in quotation marks."""
    if written is None:
        return ()
    return tuple(name.strip() for name in next(csv.reader([written], skipinitialspace=True), []))


def missing_codes(written: str | None) -> dict[str, float]:
    """Split a list such as `chol=0,trestbps=0`."""
    codes = {}
    for item in name_list(written):
        name, _, code = item.rpartition("=")
        try:
            codes[name.strip()] = float(code)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--missing takes COLUMN=NUMBER, for example chol=0, not '{item}'")
    return codes


def separator(written: str) -> str:
    """Return the character that `tab` or the character itself stands for."""
    return "\t" if written in {"tab", "\\t"} else written
