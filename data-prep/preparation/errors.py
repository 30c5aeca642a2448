"""The error for faults that a user can fix."""


class PreparationError(Exception):
    """A message that says what is wrong, where, and how to fix it; shown as one line, without a traceback."""
