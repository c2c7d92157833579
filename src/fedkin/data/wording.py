"""Names and cells in messages: lists cut short, near names suggested."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str]) -> str:
    """Say which of `names` the user may have meant; all of them if none comes near."""
    names = [str(other) for other in names]
    folded = {other.casefold(): other for other in names}
    close = get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(f"'{folded[other]}'" for other in close) + "?"
    return "; it has: " + listing(names) if names else ""


def listing(values: Collection[str], most: int = 12) -> str:
    """Write names out for a message, cutting a long list short."""
    shown = [f"'{shorten(value)}'" for value in list(values)[:most]]
    rest = len(values) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def shorten(text: str, most: int = 40) -> str:
    """Cut a long cell or name for a message."""
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= most else text[: most - 1] + "…"
