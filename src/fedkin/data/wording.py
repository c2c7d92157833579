"""Names and cells in messages: lists cut short, near names suggested."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that the user may have meant."""
    folded = {str(other).casefold(): str(other) for other in names}
    close = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def nearest(name: str, names: Collection[str]) -> str:
    """Say which name the user may have meant; all of them if none comes near."""
    near = closest(name, names)
    if near is not None:
        return f"; did you mean '{shorten(near)}'?"
    return f"; it has: {listing(names)}" if names else ""


def owners(names: Sequence[str], most: int = 3) -> str:
    """Write out whose tables are meant, cutting a long list short."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def listing(values: Collection[str], most: int = 12) -> str:
    """Write names out for a message, cutting a long list short."""
    shown = [f"'{shorten(value)}'" for value in list(values)[:most]]
    rest = len(values) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def shorten(text: str, most: int = 40) -> str:
    """Cut a long cell or name for a message."""
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= most else text[: most - 1] + "…"
