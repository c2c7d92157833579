"""Names and cells in messages: long lists are cut, close names suggested, and nothing steers a terminal."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from fedkin.errors import InputError

STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal or turns the direction of writing, and is no text: control characters, line
separators, marks and overrides of direction, and halves of characters."""


def printable(text: str) -> str:
    r"""Return a text with escapes in place of what steers a terminal; lines and tabs stay.

    >>> printable("n1\x1b[2J\tz\u00fcrich\u202e")
    'n1\\x1b[2J\tzürich\\u202e'
    """
    return STEERING.sub(
        lambda found: found[0] if found[0] in "\n\t" else ascii(found[0])[1:-1], text
    )


def check_printable(name: str, whose: str = "a name") -> str:
    r"""Return a name that a terminal and a file can show; refuse one that has control characters.

    >>> check_printable("zürich 1")
    'zürich 1'
    >>> check_printable("n1\x1b[2J", "the name of a node")
    Traceback (most recent call last):
        ...
    fedkin.errors.InputError: the name of a node has control characters: 'n1\x1b[2J'; rename it
    """
    if STEERING.search(name):
        raise InputError(f"{whose} has control characters: {shorten(ascii(name), 60)}; rename it")
    return name


def in_plain_words(message: str) -> str:
    """Return what pydantic or Typer says about a value in words that every reader knows.

    >>> in_plain_words("Input should be greater than 0"), in_plain_words("Field required")
    ('must be greater than 0', 'is missing: add it')
    >>> in_plain_words("'half' is not a valid float."), in_plain_words("0 is not in the range x>=1.")
    ("'half' is not a number.", '0 must be at least 1.')
    >>> in_plain_words("9 is not in the range 1<=x<=4.")
    '9 must be from 1 to 4.'
    """
    for found, words in PLAIN_WORDS:
        message = re.sub(found, words, message)
    return message


PLAIN_WORDS = (
    (r"^Value error, ", ""),
    (r"^Input should be", "must be"),
    (r"^Field required$", "is missing: add it"),
    (r"is not a valid float( range)?\b", "is not a number"),
    (r"is not a valid int(eger)?( range)?\b", "is not a whole number"),
    (r"is not in the range x>=(\S+?)(?=\.?$)", r"must be at least \1"),
    (r"is not in the range (\S+?)<=x<=(\S+?)(?=\.?$)", r"must be from \1 to \2"),
)


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that the user may have meant.

    >>> closest_name("Agee", ["age", "sex"])
    'age'
    """
    folded = {str(other).casefold(): str(other) for other in names}
    close = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """End a message with the name that the user may have meant, or with all names if none is close.

    >>> did_you_mean("Agee", ["age", "sex"])
    "; did you mean 'age'?"
    >>> did_you_mean("height", ["age", "sex"])
    "; it has: 'age', 'sex'"
    """
    near = closest_name(name, names)
    if near is not None:
        return f"; did you mean '{shorten(near)}'?"
    return f"; it has: {listing(names)}" if names else ""


def suggestion(name: str, names: Iterable[str]) -> str:
    """End a message with the setting or option that the user may have meant, or with all of them.

    >>> suggestion("dito", ["bilevel", "ditto"]), suggestion("sgd", ["bilevel", "ditto"])
    ('; did you mean ditto?', '; choose one of bilevel, ditto')
    """
    known = list(names)
    near = closest_name(name, known)
    return f"; choose one of {', '.join(known)}" if near is None else f"; did you mean {near}?"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join names with commas and "and", cutting a long list short.

    >>> join_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def listing(values: Collection[str], most: int = 12) -> str:
    """List values in quotation marks, cutting a long list short.

    >>> listing(["f", "m", "x"], most=2)
    "'f', 'm' and 1 more"
    """
    shown = [f"'{shorten(value)}'" for value in list(values)[:most]]
    rest = len(values) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def shorten(text: str, most: int = 40) -> str:
    """Cut a long cell or name for a message, and escape what cannot be printed."""
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= most else text[: most - 1] + "…"
