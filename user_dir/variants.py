"""Everything that a variant outside this package imports to add a family, an option or an attention."""

from . import registration  # noqa: F401  (a program may not have imported fairseq)
from .attention.masks import additive
from .attention.multihead import MultiheadAttention
from .config import VariantConfig, option
from .errors import InputError
from .families import Family
from .transformer.architectures import add_family
from .transformer.layers import SELF_ATTENTIONS
from .transformer.model import TransformerModel

__all__ = [
    "SELF_ATTENTIONS",
    "Family",
    "InputError",
    "MultiheadAttention",
    "TransformerModel",
    "VariantConfig",
    "add_family",
    "additive",
    "option",
]
