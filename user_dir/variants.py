"""Everything that a variant outside this package imports to add a family, an option, an attention or a layer."""
# ruff: noqa: F401

from . import registration  # a program may not have imported fairseq
from .attention.masks import additive
from .attention.multihead import MultiheadAttention
from .config import VariantConfig, option
from .errors import InputError
from .families import Family
from .transformer.architectures import add_family
from .transformer.layers import LAYER_VARIANTS, SELF_ATTENTIONS
from .transformer.model import TransformerModel
