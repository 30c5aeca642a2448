"""What cannot be worked with, said so that a person can mend it."""


class InputError(SystemExit, ValueError):
    """An input that cannot be worked with; the message says in one line what, where and how to mend it.

    A ValueError to whom it concerns. Where nobody takes it, as in fairseq's commands, Python ends with that line alone,
    as it does for every SystemExit, and the line is not below a traceback of twenty others.
    """
