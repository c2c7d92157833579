"""The errors that a user is meant to read: what was wrong, where, and what to do."""


class FedkinError(Exception):
    """Base class of all errors that fedkin raises on purpose."""


class InputError(FedkinError, ValueError):
    """The data or the settings cannot be used; the message says what to change."""


class DivergedError(FedkinError, ArithmeticError):
    """Training produced numbers that are infinite, NaN or far too large."""
