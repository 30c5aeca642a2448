"""Encoder and decoder layers: fairseq's post-norm and pre-norm layers with our attention.

    post-norm: x ← LayerNorm(x + Dropout(Sublayer(x)))     (Vaswani et al. 2017, section 5.4; the default)
    pre-norm:  x ← x + Dropout(Sublayer(LayerNorm(x)))     (--encoder-normalize-before, --decoder-normalize-before)

A branched attention (Ahmed et al. 2017) contains the FFN: one sublayer replaces attention and FFN. With
--branch-residual shared both remain sublayers, each with branch weights.
"""

import functools

from fairseq.modules import transformer_layer
from torch import nn

from ..attention.multihead import MultiheadAttention
from ..attention.restricted import RestrictedAttention
from ..config import VariantConfig
from ..errors import InputError
from ..kernels.autocast import autocast
from ..relative.attention import RelativeMultiheadAttention
from ..weighted.attention import BranchedAttention
from ..weighted.heads import WeightedHeads, WeightedLinear
from ..weighted.residual import ResidualBranchedAttention

# Variants of self-attention by the option that selects them; `from_config` returns a variant's arguments, or None if
# it is not selected. MultiheadAttention says which methods a variant may override.
SELF_ATTENTIONS = {"--relative-positions": RelativeMultiheadAttention}
SUPPORTING = (MultiheadAttention, RelativeMultiheadAttention)  # whose methods go with branches and RestrictedAttention
# by --branch-residual
BRANCHES = {"none": BranchedAttention, "per_branch": ResidualBranchedAttention, "shared": WeightedHeads}


def build_attention(side: str, cfg: VariantConfig, ffn_dim: int | None = None, **kwargs):
    """The multi-head attention that `cfg` selects for `side`, encoder or decoder.

    With ffn_dim (d_ff) its heads are branches, which contain FFNs of that total width.

    Raises:
        InputError: if `cfg` selects more than one of SELF_ATTENTIONS, or one with a method that would not be called
    """
    attention = MultiheadAttention
    options = {"key_dim": cfg.attention_key_dim, "value_dim": cfg.attention_value_dim, "dropout": cfg.attention_dropout}
    if "self_attention" in kwargs:
        selected = {option: variant.from_config(cfg) for option, variant in SELF_ATTENTIONS.items()}
        selected = {option: arguments for option, arguments in selected.items() if arguments is not None}
        if len(selected) > 1:
            reason = f"{' and '.join(selected)} each select a self-attention, and a model has only one"
            raise InputError(f"{reason}: omit all but one, or choose a family that does not set them")
        for option, arguments in selected.items():
            attention, options = SELF_ATTENTIONS[option], options | arguments
        if cfg.restricted_attention in (side, "both"):
            refuse_lost("compute_heads", attention, "--restricted-attention")
            attention, options = joined(RestrictedAttention, attention), options | {"neighbourhood": cfg.neighbourhood}
    elif cfg.relative_attention == "all":
        attention, options = RelativeMultiheadAttention, options | RelativeMultiheadAttention.from_config(cfg)
    if ffn_dim:
        refuse_lost("output", attention, "--branched-attention")
        branches = BRANCHES[cfg.branch_residual]
        attention, options = joined(branches, attention), options | branches.from_config(cfg, ffn_dim)
    sizes = getattr(cfg, side)
    return attention(sizes.embed_dim, sizes.attention_heads, **options, **kwargs)


def refuse_lost(method: str, attention: type, option: str) -> None:
    """Raises InputError if a variant's `attention` has its own `method`, in whose place `option` puts another."""
    if all(getattr(attention, method) is not getattr(ours, method) for ours in SUPPORTING):
        raise InputError(f"{option} replaces {method}, which {attention.__name__} overrides: omit {option}")


@functools.cache
def joined(outer: type, attention: type) -> type:
    """`outer`, such as branches or RestrictedAttention, with the base class `attention` (see MultiheadAttention)."""
    if issubclass(outer, attention):
        return outer
    parts = (outer, *getattr(attention, "parts", (attention,)))
    pickled = {"parts": parts, "__reduce__": lambda self: (blank, parts, self.__dict__)}  # it is in no module
    return type(f"{outer.__name__}Of{attention.__name__}", (outer, attention), pickled)


def blank(*parts: type) -> nn.Module:
    """An object of the class that joins `parts`, the outermost first, without attributes: for pickle and copy."""
    kind = functools.reduce(lambda attention, outer: joined(outer, attention), reversed(parts))
    return kind.__new__(kind)


def build_fc2(layer: nn.Module, input_dim: int, output_dim: int, *quantisation) -> nn.Linear:
    """The FFN's W2, with branch weights where an attention of `layer` has them (--branch-residual shared)."""
    weighted = [module for module in layer.children() if isinstance(module, WeightedHeads)]
    return WeightedLinear(input_dim, output_dim, *weighted) if weighted else nn.Linear(input_dim, output_dim)


class TransformerEncoderLayer(transformer_layer.TransformerEncoderLayerBase):
    """Self-attention, then FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (Vaswani et al. 2017, eq. 2)."""

    def build_self_attention(self, embed_dim, cfg):
        branched = cfg.branched_attention != "none"
        ffn_dim = cfg.encoder.ffn_embed_dim if branched else None
        return build_attention("encoder", cfg, ffn_dim, self_attention=True)

    build_fc2 = build_fc2
    forward = autocast(transformer_layer.TransformerEncoderLayerBase.forward)


class TransformerDecoderLayer(transformer_layer.TransformerDecoderLayerBase):
    """Masked self-attention, encoder–decoder attention, then the FFN."""

    def __init__(self, cfg):
        self.cfg = cfg
        super().__init__(cfg)
        self.need_attn = False  # the decoder requests the weights of a layer by the argument need_attn

    def make_generation_fast_(self, **kwargs) -> None:
        """Does nothing; fairseq's makes every layer return weights, though --print-alignment prints one layer's."""

    def build_self_attention(self, embed_dim, cfg, **kwargs):
        return self.build(cfg, "self", self_attention=True)

    def build_encoder_attention(self, embed_dim, cfg):
        width = cfg.encoder.embed_dim
        return self.build(cfg, "encoder_decoder", kdim=width, vdim=width, encoder_decoder_attention=True)

    def build(self, cfg, attention, **kwargs):
        """The attention called `attention`, with branches if `cfg.branched_attention` includes it."""
        ffn_dim = cfg.decoder.ffn_embed_dim
        if cfg.branched_attention == "both_halves":
            ffn_dim = ffn_dim // 2 if attention == "self" else ffn_dim - ffn_dim // 2
        branched = cfg.branched_attention in (attention, "both", "both_halves")
        return build_attention("decoder", cfg, ffn_dim if branched else None, **kwargs)

    build_fc2 = build_fc2
    forward = autocast(transformer_layer.TransformerDecoderLayerBase.forward)


class Branched:
    """A mixin for branched layers: no FFN sublayer, and attention as `sublayer`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.final_layer_norm = None  # the FFN's

    def build_fc1(self, *args):
        return None

    build_fc2 = build_fc1

    def sublayer(self, x, norm, attention, key=None, **kwargs):
        """Attention from x [T, B, d] to `key` [S, B, d_encoder] (default: x itself), with residual and `norm`.

        Returns [T, B, d] and the attention weights, as MultiheadAttention does.
        """
        query = norm(x) if self.normalize_before else x
        key = query if key is None else key
        y, weights = attention(query, key, key, **kwargs)
        if not isinstance(attention, ResidualBranchedAttention):  # which applies dropout to each of its two terms
            y = self.dropout_module(y)
        y = self.residual_connection(y, x)
        return y if self.normalize_before else norm(y), weights


class BranchedEncoderLayer(Branched, TransformerEncoderLayer):
    """One branched self-attention."""

    @autocast
    def forward(self, x, encoder_padding_mask):
        """[T, B, d] → [T, B, d]; encoder_padding_mask [B, T] is True where a key is hidden."""
        options = {"key_padding_mask": encoder_padding_mask, "need_weights": False}
        return self.sublayer(x, self.self_attn_layer_norm, self.self_attn, **options)[0]


class BranchedDecoderLayer(Branched, TransformerDecoderLayer):
    """Masked self-attention and encoder–decoder attention; `cfg.branched_attention` says which has branches.

    With "both" the FFNs in each have width d_ff in total, with "both_halves" half of it.
    """

    @autocast
    def forward(
        self,
        x,
        encoder_out=None,
        encoder_padding_mask=None,
        incremental_state=None,
        self_attn_mask=None,
        self_attn_padding_mask=None,
        need_attn=False,
        need_head_weights=False,
    ):
        """As fairseq's, without `prev_…_state`: x [T, B, d], encoder_out [S, B, d_encoder].

        Returns x [T, B, d], the weights of encoder–decoder attention, and None.
        """
        x, _ = self.sublayer(
            x,
            self.self_attn_layer_norm,
            self.self_attn,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        x, weights = self.sublayer(
            x,
            self.encoder_attn_layer_norm,
            self.encoder_attn,
            key=encoder_out,
            key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            need_weights=need_attn,
            need_head_weights=need_head_weights,
        )
        return x, weights, None


LAYERS = {  # with attention and FFN as sublayers, and with the FFN in the attention's branches
    "encoder": (TransformerEncoderLayer, BranchedEncoderLayer),
    "decoder": (TransformerDecoderLayer, BranchedDecoderLayer),
}
# Variants of all of these: mixins before the layer's class, each with a static method selected(cfg).
LAYER_VARIANTS = []


def build_layer(side: str, cfg: VariantConfig) -> TransformerEncoderLayer | TransformerDecoderLayer:
    """The layer of the "encoder" or "decoder" that `cfg` selects."""
    sublayers = cfg.branched_attention == "none" or cfg.branch_residual == "shared"
    layer = LAYERS[side][0 if sublayers else 1]
    for variant in LAYER_VARIANTS:
        if variant.selected(cfg):
            layer = joined(variant, layer)
    return layer(cfg)
