"""The one error a user can mend."""


class PreparationError(Exception):
    """A message that says what is wrong, where, and how to mend it; shown as one line, without a traceback."""
