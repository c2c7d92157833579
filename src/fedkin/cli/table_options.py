"""The options about tables that several commands take: declared once, and added to each of them."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from fedkin.cli.options import (
    NODE,
    SITE,
    TABLE,
    CategoricalOption,
    ColumnsOption,
    DropOption,
    MinimumRowsOption,
    MissingOption,
    NoHeaderOption,
    PositiveOption,
    SeparatorOption,
    StrictOption,
    TaskName,
    TaskOption,
)
from fedkin.data.arrays import FEWEST_ROWS


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


NODE_OPTIONS = (
    _option("table", Annotated[Path | None, TABLE]),
    _option("node", Annotated[list[str] | None, NODE]),
    _option("site", Annotated[str | None, SITE]),
    _option("minimum_rows", MinimumRowsOption, FEWEST_ROWS),
)
"""Whose tables there are."""

COLUMN_OPTIONS = (
    _option("task", TaskOption, TaskName.classification),
    _option("positive", PositiveOption),
    _option("categorical", CategoricalOption),
    _option("drop", DropOption),
    _option("missing", MissingOption),
    _option("strict", StrictOption, False),
    _option("columns", ColumnsOption),
    _option("no_header", NoHeaderOption, False),
    _option("separator", SeparatorOption, ","),
)
"""What columns mean, and how files are written."""


def takes(*options: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command, after its `label`.

    The command does not get their values: `read_request` and `table_settings` find them in its context.

    >>> @takes(_option("site", str))
    ... def command(label: str, out: str) -> None:
    ...     print(label, out)
    >>> list(inspect.signature(command).parameters)
    ['label', 'site', 'out']
    >>> command(label="sick", site="north", out="here")
    sick here
    """
    added = {option.name for option in options}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name not in added})

        # Keyword-only parameters may be in any order, whether they have a default or not.
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
        ]
        place = 1 + [parameter.name for parameter in own].index("label")
        parameters = [*own[:place], *options, *own[place:]]
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        return called

    return decorate
