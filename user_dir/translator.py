"""Translation in Python: ``from user_dir.translator import Translator``."""

from .serving.translator import Translator

__all__ = ["Translator"]
