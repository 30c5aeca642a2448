"""Encoder and decoder layers: fairseq's post-norm and pre-norm layers with our attention.

    post-norm: x ← LayerNorm(x + Dropout(Sublayer(x)))     (Vaswani et al. 2017, section 5.4; the default)
    pre-norm:  x ← x + Dropout(Sublayer(LayerNorm(x)))     (--encoder-normalize-before, --decoder-normalize-before)

A branched attention (Ahmed et al. 2017) has the FFN inside: one sublayer stands for attention and FFN. With
--branch-residual shared the two stay sublayers of their own, each with its branch weights.
"""

import functools

from fairseq.modules import transformer_layer

from ..attention.local import LocalAttention
from ..attention.masks import additive
from ..attention.multihead import MultiheadAttention
from ..config import VariantConfig
from ..errors import InputError
from ..kernels.autocast import autocast
from ..relative.attention import RelativeMultiheadAttention
from ..weighted.attention import BranchedAttention, ResidualBranchedAttention
from ..weighted.heads import WeightedHeads, WeightedLinear

# Self-attentions other than the plain one, by the option that asks for each; `from_config` gives an attention's
# arguments, or None if it is not wanted.
SELF_ATTENTIONS = {"--relative-positions": RelativeMultiheadAttention}
# by --branch-residual
BRANCHES = {"none": BranchedAttention, "per_branch": ResidualBranchedAttention, "shared": WeightedHeads}


def build_attention(side: str, cfg: VariantConfig, ffn_dim: int | None = None, **kwargs):
    """Multi-head attention of `side`, encoder or decoder, as `cfg` asks for it.

    With ffn_dim (d_ff) its heads are branches, with that FFN in them.

    Raises:
        InputError: if `cfg` asks for more than one of SELF_ATTENTIONS
    """
    attention = MultiheadAttention
    options = {"key_dim": cfg.attention_key_dim, "value_dim": cfg.attention_value_dim, "dropout": cfg.attention_dropout}
    if "self_attention" in kwargs:
        found = {option: variant.from_config(cfg) for option, variant in SELF_ATTENTIONS.items()}
        found = {option: wanted for option, wanted in found.items() if wanted is not None}
        if len(found) > 1:
            reason = f"{' and '.join(found)} ask for a self-attention each, and a model has one"
            raise InputError(f"{reason}: leave out all but one, or choose a family that does not set them")
        for option, wanted in found.items():
            attention, options = SELF_ATTENTIONS[option], options | wanted
        if (wanted := LocalAttention.from_config(cfg, side)) is not None:
            attention, options = joined(LocalAttention, attention), options | wanted
    elif cfg.relative_attention == "all":
        attention, options = RelativeMultiheadAttention, options | RelativeMultiheadAttention.from_config(cfg)
    if ffn_dim:
        branches = BRANCHES[cfg.branch_residual]
        attention, options = joined(branches, attention), options | branches.from_config(cfg, ffn_dim)
    sizes = getattr(cfg, side)
    return attention(sizes.embed_dim, sizes.attention_heads, **options, **kwargs)


@functools.cache
def joined(outer: type, attention: type) -> type:
    """The class `outer`, branches or LocalAttention, that leaves to `attention` what it does not do itself."""
    if issubclass(outer, attention):
        return outer
    return type(f"{outer.__name__}Of{attention.__name__}", (outer, attention), {})


class TransformerEncoderLayer(transformer_layer.TransformerEncoderLayerBase):
    """Self-attention, then FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (Vaswani et al. 2017, eq. 2)."""

    def build_self_attention(self, embed_dim, cfg):
        branched = cfg.branched_attention != "none"
        ffn_dim = cfg.encoder.ffn_embed_dim if branched else None
        return build_attention("encoder", cfg, ffn_dim, self_attention=True)

    @autocast
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class TransformerDecoderLayer(transformer_layer.TransformerDecoderLayerBase):
    """Masked self-attention, encoder–decoder attention, then the FFN."""

    def __init__(self, cfg, no_encoder_attn=False):
        self.cfg = cfg
        super().__init__(cfg, no_encoder_attn)
        self.need_attn = False  # the decoder says which layer's weights somebody reads (need_attn of the call)

    def build_self_attention(self, embed_dim, cfg, **kwargs):
        return self.build(cfg, "self", self_attention=True)

    def build_encoder_attention(self, embed_dim, cfg):
        width = cfg.encoder.embed_dim
        return self.build(cfg, "encoder_decoder", kdim=width, vdim=width, encoder_decoder_attention=True)

    def build(self, cfg, attention, **kwargs):
        """The attention of that name, branched if `cfg.branched_attention` says so."""
        ffn_dim = cfg.decoder.ffn_embed_dim
        if cfg.branched_attention == "both_halves":
            ffn_dim = ffn_dim // 2 if attention == "self" else ffn_dim - ffn_dim // 2
        branched = cfg.branched_attention in (attention, "both", "both_halves")
        return build_attention("decoder", cfg, ffn_dim if branched else None, **kwargs)

    @autocast
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class WeightedEncoderLayer(TransformerEncoderLayer):
    """The Transformer's encoder layer with branch weights (--branch-residual shared)."""

    def build_fc2(self, input_dim, output_dim, *quantisation):
        return WeightedLinear(input_dim, output_dim, self.self_attn)


class WeightedDecoderLayer(TransformerDecoderLayer):
    """The same in the decoder, with branch weights in encoder–decoder attention and FFN."""

    def build_fc2(self, input_dim, output_dim, *quantisation):
        return WeightedLinear(input_dim, output_dim, self.encoder_attn)


class Branched:
    """What branched layers have in common: no FFN sublayer, and attention as `sublayer`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.final_layer_norm = None  # the FFN's

    def build_fc1(self, *args):
        return None

    def build_fc2(self, *args):
        return None

    def sublayer(self, x, norm, attention, key=None, **kwargs):
        """Attention from x [T, B, d] to `key` [S, B, d_encoder] (default: x itself), with residual and `norm`.

        Returns [T, B, d] and the weights of the attention.
        """
        query = norm(x) if self.normalize_before else x
        key = query if key is None else key
        y, weights = attention(query, key, key, **kwargs)
        if not isinstance(attention, ResidualBranchedAttention):  # it has dropped its parts, each by a mask of its own
            y = self.dropout_module(y)
        y = self.residual_connection(y, x)
        return y if self.normalize_before else norm(y), weights


class BranchedEncoderLayer(Branched, TransformerEncoderLayer):
    """One branched self-attention."""

    @autocast
    def forward(self, x, encoder_padding_mask, attn_mask=None):
        """[T, B, d] → [T, B, d]; encoder_padding_mask [B, T] and attn_mask [T, T], True where nothing is to be seen."""
        if attn_mask is not None:
            attn_mask = additive(~attn_mask.bool(), x.dtype)
        options = {"key_padding_mask": encoder_padding_mask, "attn_mask": attn_mask, "need_weights": False}
        return self.sublayer(x, self.self_attn_layer_norm, self.self_attn, **options)[0]


class BranchedDecoderLayer(Branched, TransformerDecoderLayer):
    """Masked self-attention and encoder–decoder attention, of which `cfg.branched_attention` says which is branched.

    "both" has an FFN of width d_ff in each, "both_halves" one of half that width.
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
        """As fairseq's, without `prev_…_state`: x [T, B, d], encoder_out [S, B, d_encoder] → x, weights, None."""
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
            static_kv=True,
            need_weights=need_attn or (not self.training and self.need_attn),
            need_head_weights=need_head_weights,
        )
        return x, weights, None


def encoder_layer(cfg: VariantConfig) -> TransformerEncoderLayer:
    """The encoder layer that `cfg` asks for."""
    if cfg.branched_attention == "none":
        return TransformerEncoderLayer(cfg)
    return WeightedEncoderLayer(cfg) if cfg.branch_residual == "shared" else BranchedEncoderLayer(cfg)


def decoder_layer(cfg: VariantConfig, no_encoder_attn: bool) -> TransformerDecoderLayer:
    """The decoder layer that `cfg` asks for."""
    if cfg.branched_attention == "none":
        return TransformerDecoderLayer(cfg, no_encoder_attn)
    return (WeightedDecoderLayer if cfg.branch_residual == "shared" else BranchedDecoderLayer)(cfg, no_encoder_attn)
