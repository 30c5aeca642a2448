"""Translation in Python: ``from user_dir.translator import Translator``."""

import logging

root = logging.getLogger()
handlers, level = root.handlers[:], root.level

from .serving.translator import Translator  # noqa: E402

# fairseq's import sets up the log of the whole program, with the debugging lines of all libraries.
root.handlers[:] = handlers
root.setLevel(level)

__all__ = ["Translator"]
