"""What cannot be worked with, said so that a person can mend it."""


class InputError(ValueError):
    """An input that cannot be worked with; the message says in one line what, where and how to mend it."""
