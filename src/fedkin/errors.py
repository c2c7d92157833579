"""The errors that a user is meant to read: what was wrong, where, and what to do."""


class FedkinError(Exception):
    """Base of all errors that fedkin raises on purpose."""


class InputError(FedkinError, ValueError):
    """The data or the settings cannot be used as they are."""


class DivergedError(FedkinError, ArithmeticError):
    """An optimization left the region where its numbers mean anything."""
