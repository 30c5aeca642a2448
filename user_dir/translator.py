"""Translation in Python: ``from user_dir.translator import Translator``."""

from . import registration  # noqa: F401  (first: it keeps the program's log)
from .serving.translator import Translator  # noqa: F401
